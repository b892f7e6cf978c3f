package doctor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/deploy"
	"github.com/streamcounter/streamcounter/internal/doctor"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// A Cluster of two masters.
func TestCluster(t *testing.T) {
	ctx := t.Context()
	var nodes []*streamtest.Server
	for range 2 {
		port := testkit.FreePort(t) // the default bus port, 10000 above, may be too large
		nodes = append(nodes, streamtest.OwnRedis(t, append(shipped(t), "--cluster-enabled", "yes", "--cluster-port",
			fmt.Sprint(port), "--cluster-node-timeout", "60000", "--loglevel", "notice")...))
	}
	first, second := streamtest.Connect(t, nodes[0].URL()), streamtest.Connect(t, nodes[1].URL())
	testkit.Must(t, first.ClusterAddSlotsRange(ctx, 0, 12000).Err())
	testkit.Must(t, second.ClusterAddSlotsRange(ctx, 12001, 16383).Err())
	testkit.Must(t, second.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", 2).Err())
	host, port, _ := strings.Cut(nodes[1].Addr(), ":")
	bus := second.ConfigGet(ctx, "cluster-port").Val()["cluster-port"]
	testkit.Must(t, first.Do(ctx, "CLUSTER", "MEET", host, port, bus).Err())
	for _, c := range []*redis.Client{first, second} {
		streamtest.Eventually(t, "the Cluster is up", func() (bool, string) {
			text := c.ClusterInfo(ctx).Val()
			return strings.Contains(text, "cluster_state:ok") && strings.Contains(text, "cluster_known_nodes:2"), text
		})
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr(), nodes[1].Addr()},
		MaxRedirects: 3, DialerRetries: 1})
	defer cluster.Close()
	testkit.Must(t, stream.CheckMeta(ctx, cluster, keysOf(t, 16)))
	testkit.Must(t, second.ConfigSet(ctx, "stream-node-max-bytes", "4096").Err())
	testkit.Must(t, first.ConfigSet(ctx, "appendfsync", "no").Err())
	testkit.Must(t, second.ConfigSet(ctx, "appendonly", "no").Err())
	replica := streamtest.Connect(t, streamtest.OwnRedis(t).URL())
	testkit.Must(t, replica.ReplicaOf(ctx, host, port).Err())
	streamtest.Eventually(t, "the second master has a replica", func() (bool, string) {
		info := second.Info(ctx, "replication").Val()
		return strings.Contains(info, "connected_slaves:1"), info
	})
	findings := look(t, cluster)
	expect(t, findings, "redis.replicas", doctor.Warning, "0 replicas", nodes[0].Addr())
	expect(t, findings, "redis.cluster", doctor.Note, "16 partitions over 2 masters: 4, 12", "reshard")
	expect(t, findings, "redis.stream-node-max-bytes", doctor.Warning, nodes[1].Addr())
	expect(t, findings, "redis.persistence", doctor.Warning, "appendfsync no ("+nodes[0].Addr()+")")
	expect(t, findings, "redis.persistence", doctor.Warning, "appendonly no", nodes[1].Addr())
	expect(t, findings, "redis.version", doctor.OK, "each of 2 masters")
	expect(t, findings, "redis.clock", doctor.OK)
	expect(t, findings, "state.unread", doctor.OK)
	// The users of deploy/, with the rights that docs/operations.md adds for a Cluster.
	for _, c := range []*redis.Client{first, second} {
		for line := range strings.Lines(deploy.UsersACL) {
			args := []any{"ACL", "SETUSER"}
			for _, f := range strings.Fields(line)[1:] {
				args = append(args, f)
			}
			if user := args[2]; user == "doctor" || user == "work" {
				testkit.Must(t, c.Do(ctx, append(args, ">pw", "+cluster|slots", "+asking", "+command",
					"+cluster|info", "+cluster|nodes")...).Err())
			}
		}
	}
	as := func(user string) *redis.ClusterClient {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}, Username: user,
			Password: "pw", DisableIdentity: true})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	r := lua.NewCaller(as("work")).Call(ctx, "lock", nil, []string{"sc:{3}:relay"}, "me", 1000)
	if held := r.Integer(); held != 1 {
		t.Errorf("work on a Cluster: %d, %v", held, r.Err())
	}
	for state, at := range map[string][2]*redis.Client{"MIGRATING": {first, second}, "IMPORTING": {second, first}} {
		testkit.Must(t, at[0].Do(ctx, "CLUSTER", "SETSLOT", 1716, state, at[1].ClusterMyID(ctx).Val()).Err())
		expect(t, look(t, as("doctor")), "redis.cluster", doctor.Warning, ": 1716 (partition 7)", "--cluster fix")
		testkit.Must(t, at[0].Do(ctx, "CLUSTER", "SETSLOT", 1716, "STABLE").Err())
	}
	for _, f := range append(findings, look(t, as("doctor"))...) {
		if strings.Contains(f.Found, "not checked") && f.Check != "redis.acl-log" || strings.Contains(f.Found, "1716") {
			t.Errorf("%+v", f)
		}
	}
	for _, c := range []*redis.Client{first, second} {
		if list := c.ACLLog(ctx, 10).Val(); len(list) > 0 {
			t.Errorf("refused on a Cluster: %+v", list)
		}
	}
	for i, frozen := range nodes { // whichever is examined first
		frozen.Pause()
		onlySilent(t, []string{nodes[0].Addr(), nodes[1].Addr()}, frozen.Addr(), nodes[1-i].Addr())
		frozen.Resume()
	}
	nodes[1].Kill()
	expect(t, look(t, cluster), doctor.RedisReachable, doctor.Problem, nodes[1].Addr(), "does not answer")
}

// onlySilent checks that the report of a Cluster blames the silent master alone, has what the other says about itself
// and its partitions, and names the silent one as why the rest was not checked. The time is that of the command.
func onlySilent(t *testing.T, addrs []string, silent, answers string) {
	t.Helper()
	c := stream.NewCluster(&redis.ClusterOptions{Addrs: addrs, DialerRetries: 1, ContextTimeoutEnabled: true,
		ReadTimeout: time.Minute})
	defer c.Close()
	started := doctor.Start(t.Context(), c, keysOf(t, 16), "serve", 2*time.Second)
	expect(t, started, doctor.RedisReachable, doctor.Problem, silent)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	findings := doctor.Redis(ctx, c, doctor.RedisConfig{Keys: keysOf(t, 16), Retention: stream.DefaultRetention})
	if err := ctx.Err(); err != nil {
		t.Errorf("the examination takes too long: %v", err)
	}
	expect(t, findings, doctor.RedisReachable, doctor.Problem, silent)
	expect(t, findings, "state", doctor.Warning, silent+" does not answer", "(partitions ")
	expect(t, findings, "state.unread", doctor.OK)
	expect(t, findings, "redis.users", doctor.OK)
	for _, f := range append(started, findings...) {
		if f.Check == doctor.RedisReachable && strings.Contains(f.Found, answers) {
			t.Errorf("%s answers: %+v", answers, f)
		}
	}
}

// A frozen server does not delay an examination longer than its bound.
func TestSilentRedis(t *testing.T) {
	own := streamtest.OwnRedis(t)
	c := streamtest.Connect(t, own.URL())
	testkit.Must(t, c.Ping(t.Context()).Err())
	own.Pause()
	began := time.Now()
	expect(t, doctor.Start(t.Context(), c, keysOf(t, 16), "serve", 200*time.Millisecond), doctor.RedisReachable,
		doctor.Problem)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	findings := doctor.Redis(ctx, c, doctor.RedisConfig{Keys: keysOf(t, 16), Retention: stream.DefaultRetention})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	expect(t, findings, doctor.RedisReachable, doctor.Problem, "does not answer")
}
