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
	p := startServe(t, "--max-connections", "1")
	first, err := net.Dial("tcp", strings.TrimPrefix(p.base(), "http://"))
	testkit.Must(t, err)
	defer first.Close()
	came := make(chan int, 1)
	go func() {
		code, _ := answered(t, over(nil), "GET", p.base()+"/healthz", "")
		came <- code
	}()
	// Meanwhile the first sends requests, and gets an answer to each: few, because a connection without a request
	// ends after 5 s, and a busy machine is slow.
	talk := bufio.NewReader(first)
	for range 100 {
		_, err := io.WriteString(first, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		testkit.Must(t, err)
		resp, err := http.ReadResponse(talk, nil)
		testkit.Must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		testkit.Must(t, err)
	}
	select {
	case code := <-came:
		t.Fatalf("a second caller was answered: %d", code)
	default:
	}
	_ = first.Close()
	if code := <-came; code != 200 {
		t.Errorf("once the first has gone: %d", code)
	}
}
