package embedded_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

const text = `#!lua name=lib
local calls = 0
local function add(name, run, flags)
  redis.register_function{function_name = name, callback = run, flags = flags}
end
add('echo', function(keys, args)
  calls = calls + 1
  return {calls, keys[1], args[1] + 1, redis.call('SET', keys[1], args[1]), redis.call('GET', 'none'), {'list'}}
end)
add('get', function(keys) return redis.call('GET', keys[1]) end, {'no-writes'})
add('wrong', function(keys) return redis.call('XADD', keys[1], '*', 'a', 'b') end)
add('caught', function(keys) return redis.pcall('XADD', keys[1], '*', 'a', 'b').err end)
add('ours', function() return {err = 'PERIOD 7'} end)
add('raises', function() error('no') end)
add('words', function() return {redis.sha1hex(''), cjson.decode('{"a":[1]}').a[1], cjson.encode({1})} end)
add('append', function(keys) redis.call('XADD', keys[1], '*', 'a', 'b') end)
`

// An embedded Redis answers calls of functions as Redis 7 does, and a library keeps what it has set.
func TestFunctions(t *testing.T) {
	ctx, c := t.Context(), streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr())
	if err := c.FCall(ctx, "echo", []string{"k"}, 1).Err(); err == nil || err.Error() != "ERR Function not found" {
		t.Error(err)
	}
	testkit.Must(t, c.FunctionLoad(ctx, text).Err())
	if err := c.FunctionLoad(ctx, text).Err(); err == nil || err.Error() != "ERR Library 'lib' already exists" {
		t.Error(err)
	}
	for pattern, want := range map[string]int{"l*": 1, "x*": 0} {
		list, err := c.FunctionList(ctx, redis.FunctionListQuery{LibraryNamePattern: pattern}).Result()
		if err != nil || len(list) != want || want > 0 && list[0].Name != "lib" {
			t.Errorf("%s: %+v, %v", pattern, list, err)
		}
	}
	for _, x := range []struct{ function, want string }{
		{"echo", "[1 k 6 OK <nil> [list]] <nil>"},
		{"echo", "[2 k 6 OK <nil> [list]] <nil>"},
		{"get", "5 <nil>"},
		{"wrong", "<nil> WRONGTYPE Operation against a key holding the wrong kind of value"},
		{"caught", "WRONGTYPE Operation against a key holding the wrong kind of value <nil>"},
		{"ours", "<nil> PERIOD 7"},
		{"raises", "<nil> ERR user_function: <string>:14: no"},
		{"words", "[da39a3ee5e6b4b0d3255bfef95601890afd80709 1 [1]] <nil>"},
		{"echo", "[3 k 6 OK <nil> [list]] <nil>"},
	} {
		got, err := c.FCall(ctx, x.function, []string{"k"}, 5).Result()
		if text := fmt.Sprint(got, " ", err); text != x.want {
			t.Errorf("%s: %s, want %s", x.function, text, x.want)
		}
	}
	if got, err := c.FCallRO(ctx, "get", []string{"k"}).Result(); got != "5" {
		t.Error(got, err)
	}
	if got, err := c.FCallRO(ctx, "echo", []string{"k"}, 5).Result(); err == nil {
		t.Error(got)
	}
}

// Foreign calls to the port of the embedded Redis do not reach the machine, and do not hang the server.
func TestForeignCalls(t *testing.T) {
	m := streamtest.EmbeddedRedis(t)
	ctx, c := t.Context(), streamtest.Connect(t, m.Addr())
	testkit.Must(t, c.FunctionLoad(ctx, text).Err())
	for _, name := range []string{"io", "os", "package", "debug", "require", "dofile", "loadfile"} {
		code := fmt.Sprintf("#!lua name=%[1]s\n"+
			"redis.register_function{function_name='%[1]s', callback=function() return %[1]s end}", name)
		testkit.Must(t, c.FunctionLoad(ctx, code).Err())
		if got, err := c.FCall(ctx, name, nil).Result(); err != redis.Nil {
			t.Errorf("%s is %v, %v", name, got, err)
		}
	}
	const two = "#!lua name=two\nredis.register_function{function_name='echo', callback=function() end}"
	for code, want := range map[string]string{two: "ERR Function echo already exists",
		"#!lua name=none\nlocal x = 1": "ERR No functions registered"} {
		if err := c.FunctionLoad(ctx, code).Err(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	const refused = "ERR This Redis command is not allowed from script"
	for _, call := range []string{"'FUNCTION', 'LIST'", "'FCALL', 'get', 1, 'k'", "'FCALL_RO', 'get', 1, 'k'"} {
		err := c.Eval(ctx, "return redis.pcall("+call+").err", nil).Err()
		if got := c.Eval(ctx, "return redis.pcall("+call+").err", nil).Val(); got != refused {
			t.Errorf("%s: %v, %v", call, got, err)
		}
	}
	_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.FCall(ctx, "get", []string{"k"}).Err() })
	if err == nil {
		t.Error("a transaction has called a function")
	}
	testkit.Must(t, c.FunctionDelete(ctx, "lib").Err())
	if err := c.FCall(ctx, "get", []string{"k"}).Err(); err == nil || err.Error() != "ERR Function not found" {
		t.Error(err)
	}
}

// A function works in the database of its caller.
func TestDatabases(t *testing.T) {
	ctx, m := t.Context(), streamtest.EmbeddedRedis(t)
	for _, database := range []int{0, 5, 0, 3} {
		c := streamtest.Connect(t, fmt.Sprintf("redis://%s/%d", m.Addr(), database))
		_ = c.FunctionLoad(ctx, text).Err() // it is there, after the first time
		key := fmt.Sprint("k", database)
		testkit.Must(t, c.FCall(ctx, "echo", []string{key}, 7).Err())
		if got := c.Get(ctx, key).Val(); got != "7" {
			t.Errorf("database %d has %q", database, got)
		}
	}
}

// A read that waits receives the entry that a function appends.
func TestAWaitingReadReceivesTheEntryOfAFunction(t *testing.T) {
	ctx, c := t.Context(), streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr())
	testkit.Must(t, c.FunctionLoad(ctx, text).Err())
	read := make(chan error, 1)
	go func() {
		read <- c.XRead(ctx, &redis.XReadArgs{Streams: []string{"s", "0"}, Block: 20 * time.Second}).Err()
	}()
	if err := c.FCall(ctx, "append", []string{"s"}).Err(); err != nil && err != redis.Nil {
		t.Fatal(err)
	}
	testkit.Must(t, <-read)
}
