package faults

import (
	"bufio"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/measure"
)

// soakRow is what was seen at one time.
type soakRow struct {
	at     time.Duration // since the first
	keys   int64         // that had come
	rss    []int64       // bytes, of each process
	memory int64         // bytes that Redis holds
	held   int64         // keys that Redis holds
	oldest time.Duration // age of the oldest event that no worker has read
}

type soakRows []soakRow

// watch takes a row each second until ctx ends, and holds the driver up while the
// workers are behind.
func (s *soak) watch(ctx context.Context) {
	for began := time.Now(); ; {
		row := soakRow{at: time.Since(began), keys: s.done.Load()}
		var failed error
		for _, p := range s.parts {
			n, err := resident(p)
			row.rss, failed = append(row.rss, n), errors.Join(failed, err)
		}
		backlogs, err := eventlog.Backlogs(ctx, s.redis, s.keys)
		for _, b := range backlogs {
			row.oldest = max(row.oldest, b.Oldest)
		}
		s.behind.Store(row.oldest > 2*time.Second)
		failed = errors.Join(failed, err)
		row.memory, err = measure.Memory(ctx, s.redis)
		failed = errors.Join(failed, err)
		row.held, err = s.redis.DBSize(ctx).Result()
		if failed = errors.Join(failed, err); failed != nil && ctx.Err() == nil {
			s.t.Errorf("looking at the processes: %v", failed)
		}
		if ctx.Err() == nil {
			s.rows = append(s.rows, row)
		}
		if !pace(ctx, time.Second) {
			return
		}
	}
}

// resident reads how much memory a process has (VmRSS), in bytes.
func resident(p *part) (int64, error) {
	p.mu.Lock()
	pid := p.cmd.Process.Pid
	p.mu.Unlock()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(text), "VmRSS:")
	fields := strings.Fields(rest)
	if !found || len(fields) < 2 || fields[1] != "kB" {
		return 0, fmt.Errorf("process %d has no VmRSS: has it ended?", pid)
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	return n << 10, err
}

// idle reports whether all that came was counted and published, and no level stands.
func (s *soak) idle() (bool, string) {
	ctx := s.t.Context()
	backlogs, err := eventlog.Backlogs(ctx, s.redis, s.keys)
	if err != nil {
		return false, err.Error()
	}
	var left int64
	for p, b := range backlogs {
		left += b.Pending
		if b.Oldest > 0 {
			left++
		}
		waiting, err := s.redis.XLen(ctx, s.keys.Outbox(p)).Result()
		standing, err2 := s.redis.ZCard(ctx, s.keys.Due(p)).Result()
		if err = errors.Join(err, err2); err != nil {
			return false, err.Error()
		}
		left += waiting + standing
	}
	return left == 0, fmt.Sprintf("%d events, transitions and levels", left)
}

func (s *soak) fetch(req *http.Request, err error) (string, error) {
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(body), err
}

// metric adds up a metric of the workers.
func (s *soak) metric(name string) (sum float64) {
	for _, base := range s.admin {
		text, err := s.fetch(http.NewRequest(http.MethodGet, base+"/metrics", nil))
		if err != nil {
			s.t.Error(err)
		}
		for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
			series, value, _ := strings.Cut(lines.Text(), " ")
			if series, _, _ = strings.Cut(series, "{"); series != name {
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				s.t.Error(err)
			}
			sum += n
		}
	}
	return sum
}

// thirds gives the median of process i while the first and the last third of the
// keys came, and the most that it ever had.
func (rows soakRows) thirds(i int, keys uint64) (first, last, most int64) {
	var begin, end []int64
	for _, r := range rows {
		if uint64(r.keys) <= keys/3 {
			begin = append(begin, r.rss[i])
		}
		if uint64(r.keys) >= keys-keys/3 {
			end = append(end, r.rss[i])
		}
		most = max(most, r.rss[i])
	}
	return median(begin), median(end), most
}

func median[T cmp.Ordered](list []T) (m T) {
	if slices.Sort(list); len(list) > 0 {
		m = list[len(list)/2]
	}
	return m
}

// slope is the straight line through what process i had after the first third of
// the run, in bytes a key.
func (rows soakRows) slope(i int) float64 {
	rows = rows[len(rows)/3:]
	var x, y, xx, xy float64
	for _, r := range rows {
		k, b := float64(r.keys), float64(r.rss[i])
		x, y, xx, xy = x+k, y+b, xx+k*k, xy+k*b
	}
	n := float64(len(rows))
	if n*xx == x*x {
		return 0
	}
	return (n*xy - x*y) / (n*xx - x*x)
}

func (rows soakRows) write(path string, names []string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := csv.NewWriter(f)
	head := []string{"seconds", "keys"}
	for _, name := range names {
		head = append(head, name+" resident bytes")
	}
	_ = w.Write(append(head, "redis used_memory bytes", "redis keys", "oldest unread ms")) // w keeps the first error
	for _, r := range rows {
		line := []string{fmt.Sprintf("%.1f", r.at.Seconds()), fmt.Sprint(r.keys)}
		for _, n := range r.rss {
			line = append(line, fmt.Sprint(n))
		}
		_ = w.Write(append(line, fmt.Sprint(r.memory), fmt.Sprint(r.held), fmt.Sprint(r.oldest.Milliseconds())))
	}
	w.Flush()
	return errors.Join(w.Error(), f.Sync())
}
