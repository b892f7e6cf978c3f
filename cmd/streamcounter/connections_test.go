package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Beyond --max-connections, a new connection waits until another one ends.
func TestConnectionsAreBounded(t *testing.T) {
	p := startServe(t, "--max-connections", "3")
	addr := strings.TrimPrefix(p.base(), "http://")
	var list []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", addr)
		testkit.Must(t, err)
		defer c.Close()
		list = append(list, c)
	}
	came := make(chan int, 1)
	go func() {
		code, _ := answered(t, over(nil), "GET", p.base()+"/healthz", "")
		came <- code
	}()
	// Meanwhile one of the three sends a thousand requests, and gets an answer to each.
	talk := bufio.NewReader(list[1])
	for range 1000 {
		_, err := io.WriteString(list[1], "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		testkit.Must(t, err)
		resp, err := http.ReadResponse(talk, nil)
		testkit.Must(t, err)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s, %v", resp.Status, err)
		}
	}
	select {
	case code := <-came:
		t.Fatalf("a fourth caller was answered: %d", code)
	default:
	}
	_ = list[0].Close()
	if code := <-came; code != 200 {
		t.Errorf("once another has gone: %d", code)
	}
}
