package embedded

import (
	"crypto/sha1" //nolint:gosec // redis.sha1hex
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	luajson "github.com/alicebob/miniredis/v2/gopher-json"
	"github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
)

// newState makes the state of a library, which registers its functions in a map.
func (f *functions) newState(registered map[string]*function) *lua.LState {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable,
		lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath, "cjson": luajson.Loader} {
		state.Push(state.NewFunction(open))
		state.Push(lua.LString(name))
		state.Call(1, 1)
		if name == "cjson" {
			state.SetGlobal(name, state.Get(-1))
		}
		state.Pop(1)
	}
	for _, name := range []string{"dofile", "loadfile", "module", "require", "print"} { // anybody may load a library
		state.SetGlobal(name, lua.LNil)
	}
	state.SetGlobal("redis", state.SetFuncs(state.NewTable(), map[string]lua.LGFunction{
		"call":    func(l *lua.LState) int { return f.call(l, true) },
		"pcall":   func(l *lua.LState) int { return f.call(l, false) },
		"sha1hex": sha1hex,
		"register_function": func(l *lua.LState) int {
			given := l.CheckTable(1)
			run, ok := given.RawGetString("callback").(*lua.LFunction)
			if !ok {
				l.RaiseError("redis.register_function needs a callback")
			}
			fn := &function{state: state, run: run}
			if flags, ok := given.RawGetString("flags").(*lua.LTable); ok {
				flags.ForEach(func(_, flag lua.LValue) { fn.noWrites = fn.noWrites || flag.String() == "no-writes" })
			}
			registered[lua.LVAsString(given.RawGetString("function_name"))] = fn
			return 0
		},
	}))
	return state
}

func sha1hex(l *lua.LState) int {
	sum := sha1.Sum([]byte(l.CheckString(1))) //nolint:gosec // redis.sha1hex
	l.Push(lua.LString(hex.EncodeToString(sum[:])))
	return 1
}

// fcall answers FCALL and FCALL_RO.
func (f *functions) fcall(c *server.Peer, command string, args []string) {
	if len(args) < 2 {
		c.WriteError("ERR wrong number of arguments for '" + strings.ToLower(command) + "' command")
		return
	}
	keys, err := strconv.Atoi(args[1])
	if err != nil || keys < 0 || keys > len(args)-2 {
		c.WriteError("ERR Bad number of keys provided")
		return
	}
	fn := f.byName[args[0]]
	switch {
	case fn == nil:
		c.WriteError("ERR Function not found")
		return
	case strings.EqualFold(command, "FCALL_RO") && !fn.noWrites:
		c.WriteError("ERR Can not execute a script with write flag using *_ro command.")
		return
	}
	if database := f.contextOf(c, "selectedDB").Int(); database != f.database {
		_, _ = f.dispatch(fn.state, []string{"SELECT", strconv.FormatInt(database, 10)}) // the client has selected it
		f.database = database
	}
	l := fn.state
	err = l.CallByParam(lua.P{Fn: fn.run, NRet: 1, Protect: true}, listOf(l, args[2:2+keys]), listOf(l, args[2+keys:]))
	if err != nil {
		c.WriteError(messageOf(err))
		return
	}
	result := l.Get(-1)
	l.Pop(1)
	write(c, result)
}

func listOf(l *lua.LState, texts []string) *lua.LTable {
	t := l.CreateTable(len(texts), 0)
	for _, text := range texts {
		t.Append(lua.LString(text))
	}
	return t
}

// messageOf returns the error reply of a function that failed. An error that redis.call raised is a table.
func messageOf(err error) string {
	var failed *lua.ApiError
	if !errors.As(err, &failed) {
		return "ERR " + err.Error()
	}
	if t, ok := failed.Object.(*lua.LTable); ok {
		return lua.LVAsString(t.RawGetString("err"))
	}
	return "ERR user_function: " + failed.Object.String()
}

// call implements redis.call, which raises an error, and redis.pcall, which returns it.
func (f *functions) call(l *lua.LState, raises bool) int {
	args := make([]string, l.GetTop())
	for i := range args {
		args[i] = l.CheckString(i + 1)
	}
	value, err := f.dispatch(l, args)
	switch {
	case err == nil:
		l.Push(value)
	case raises:
		l.Error(errorTable(l, err), 1)
	default:
		l.Push(errorTable(l, err))
	}
	return 1
}

func errorTable(l *lua.LState, err error) *lua.LTable {
	t := l.NewTable()
	t.RawSetString("err", lua.LString(err.Error()))
	return t
}

// dispatch runs a command and returns its reply.
func (f *functions) dispatch(l *lua.LState, args []string) (lua.LValue, error) {
	f.reply.Reset()
	f.in.Reset(&f.reply)
	f.redis.Server().Dispatch(f.inner, args)
	f.out.Flush()
	reply, err := server.ParseReply(f.in)
	if err != nil {
		return nil, err
	}
	return toLua(l, reply), nil
}

// toLua converts a reply.
func toLua(l *lua.LState, reply any) lua.LValue {
	switch r := reply.(type) {
	case nil:
		return lua.LFalse
	case int:
		return lua.LNumber(r)
	case int64:
		return lua.LNumber(r)
	case string:
		return lua.LString(r)
	case []byte:
		return lua.LString(r)
	case server.Simple:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(r))
		return t
	case []any:
		t := l.CreateTable(len(r), 0)
		for _, e := range r {
			t.Append(toLua(l, e))
		}
		return t
	}
	panic(fmt.Sprintf("a reply of miniredis has a %T", reply))
}

// write replies with a value of Lua.
func write(c *server.Peer, value lua.LValue) {
	switch v := value.(type) {
	case lua.LNumber:
		c.WriteInt(int(v))
	case lua.LString:
		c.WriteBulk(string(v))
	case lua.LBool:
		if v {
			c.WriteInt(1)
		} else {
			c.WriteNull()
		}
	case *lua.LTable:
		if text := v.RawGetString("err"); text != lua.LNil {
			c.WriteError(text.String())
			return
		}
		if text := v.RawGetString("ok"); text != lua.LNil {
			c.WriteInline(text.String())
			return
		}
		n := 0
		for v.RawGetInt(n+1) != lua.LNil {
			n++
		}
		c.WriteLen(n)
		for i := range n {
			write(c, v.RawGetInt(i+1))
		}
	default:
		c.WriteNull()
	}
}
