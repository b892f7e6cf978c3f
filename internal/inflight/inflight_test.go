package inflight

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// reader is a server that reads bodies from a pool, with the outcome of each. It answers when hold is closed, or at
// once if hold is nil.
type reader struct {
	*httptest.Server
	pool *Pool
	done chan error
}

func newReader(t *testing.T, most int64, hold <-chan struct{}) *reader {
	r := &reader{pool: NewPool(most), done: make(chan error, 100)}
	r.pool.grace = 50 * time.Millisecond
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, free, err := r.pool.Read(w, req, 1<<20)
		defer free()
		if r.done <- err; err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if hold != nil {
			<-hold
		}
		_, _ = fmt.Fprint(w, len(body))
	}))
	t.Cleanup(r.Close)
	return r
}

// unfinished sends all of a body but its end.
func (r *reader) unfinished(t *testing.T, size int) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.Listener.Addr().String())
	testkit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	testkit.Must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", size,
		strings.Repeat("x", size-1))
	testkit.Must(t, err)
	return c
}

func (r *reader) post(t *testing.T, body io.Reader) (status int, text string) {
	t.Helper()
	resp, err := http.Post(r.URL, "text/plain", body)
	testkit.Must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	return resp.StatusCode, string(b)
}

func (r *reader) holds(t *testing.T, want int64) {
	t.Helper()
	streamtest.Eventually(t, fmt.Sprint(want, " bytes are held"), func() (bool, string) {
		held := r.pool.Held()
		return held == want, fmt.Sprint(held)
	})
}

// A body that is not there at the deadline of its connection is late, and not unreadable.
func TestALateBody(t *testing.T) {
	r := newReader(t, 1<<20, nil)
	before := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(past)
		r.Config.Handler.ServeHTTP(w, req)
	}))
	t.Cleanup(before.Close)
	(&reader{Server: before}).unfinished(t, 10_000)
	if err := <-r.done; !errors.Is(err, ErrLate) {
		t.Errorf("%v, want ErrLate", err)
	}
}

// Bodies that never end fill the pool. Bodies that end are read nevertheless, because the oldest make room.
func TestUnfinishedBodiesMakeRoom(t *testing.T) {
	r := newReader(t, 100_000, nil)
	var slow []net.Conn
	for i := range 9 {
		slow = append(slow, r.unfinished(t, 10_000))
		r.holds(t, int64(i+1)*10_001)
	}
	for range 3 {
		if status, text := r.post(t, strings.NewReader(strings.Repeat("x", 30_000))); status != 200 ||
			text != "30000" {
			t.Fatalf("%d %q", status, text)
		}
	}
	for i, c := range slow { // the first needed three of them to go: the oldest
		want := "HTTP/1.1 503"
		if i >= 3 {
			_, err := c.Write([]byte("x"))
			testkit.Must(t, err)
			want = "HTTP/1.1 200"
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Errorf("unfinished body %d: %q, %v, want %s", i, got, err, want)
		}
	}
	for _, c := range slow {
		_ = c.Close()
	}
	r.holds(t, 0)
}

// A body that was read and is worked on is never given up. A later request is refused because nothing is left, at
// once or after Wait.
func TestFullPoolRefuses(t *testing.T) {
	hold := make(chan struct{})
	r := newReader(t, 10_000, hold)
	r.pool.wait = 100 * time.Millisecond
	answered := make(chan int, 1)
	go func() {
		status, _ := r.post(t, strings.NewReader(strings.Repeat("x", 8_000)))
		answered <- status
	}()
	testkit.Must(t, <-r.done)
	for _, size := range []int{5_000, 20_000} {
		status, _ := r.post(t, strings.NewReader(strings.Repeat("x", size)))
		if err := <-r.done; status != 503 || !errors.Is(err, ErrFull) {
			t.Errorf("%d bytes: %d, %v, want ErrFull", size, status, err)
		}
	}
	close(hold)
	if status := <-answered; status != 200 {
		t.Errorf("the first: %d", status)
	}
	r.holds(t, 0)
}

// Bodies of every length, declared or not, are read whole, and hold about what they are.
func TestRead(t *testing.T) {
	r := newReader(t, 4<<20, nil)
	for _, size := range []int{0, 1, 511, 512, 513, 65_535, 65_536, 65_537, 1<<20 - 1, 1 << 20, 1<<20 + 1} {
		for _, declared := range []bool{true, false} {
			var body io.Reader = strings.NewReader(strings.Repeat("x", size))
			if !declared {
				body = io.MultiReader(body)
			}
			status, text := r.post(t, body)
			err := <-r.done
			var large *http.MaxBytesError
			if want := size <= 1<<20; want != (status == 200 && text == fmt.Sprint(size)) || !want !=
				errors.As(err, &large) {
				t.Errorf("%d bytes, declared %t: %d %q, %v", size, declared, status, text, err)
			}
		}
	}
	r.holds(t, 0)
}

// An answer that nobody reads makes room for others, too.
func TestUnreadAnswersMakeRoom(t *testing.T) {
	const size = 64 << 20 // more than a connection's buffers
	pool := NewPool(size + 100)
	pool.grace = 50 * time.Millisecond
	long := make([]byte, size)
	unread, other := make(chan error, 1), make(chan error, 1) // what becomes of the two answers
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "x" {
			unread <- pool.Write(w, r, long)
			return
		}
		other <- pool.Write(w, r, long[:200])
	}))
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	testkit.Must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "GET /?x HTTP/1.1\r\nHost: x\r\n\r\n")
	testkit.Must(t, err)
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(s.URL)
	testkit.Must(t, err)
	_ = resp.Body.Close()
	if err := <-unread; !errors.Is(err, ErrSlow) {
		t.Errorf("the answer that nobody reads: %v", err)
	}
	if err := <-other; err != nil || resp.StatusCode != 200 {
		t.Errorf("the other: %s, %v", resp.Status, err)
	}
}
