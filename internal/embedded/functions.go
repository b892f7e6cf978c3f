// Package embedded adds Redis Functions to miniredis, which has only scripts. A script runs all of its text at each
// call: it creates each function and reads each plan again. A library keeps both.
//
// It has what this project needs of functions: FUNCTION LOAD, LIST and DELETE, FCALL and FCALL_RO; within a function
// redis.call, redis.pcall, redis.sha1hex and cjson. A call cannot be part of a transaction (MULTI), and a function with
// the flag no-writes can write, without an error. Read call.go next.
package embedded

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua" // miniredis runs scripts with it
)

// functions are those of one server. All fields, and the states of Lua, are used under the lock of the server.
type functions struct {
	redis     *miniredis.Miniredis
	libraries map[string][]string  // name -> its functions
	byName    map[string]*function // name -> function of any library

	// inner calls commands while a function runs, in a database.
	inner    *server.Peer
	database int64
	out      *bufio.Writer // of inner
	reply    bytes.Buffer  // what is written to out
	in       *bufio.Reader // reads reply
}

type function struct {
	state    *lua.LState // of its library
	run      *lua.LFunction
	noWrites bool
}

// AddFunctions adds Redis Functions to a miniredis that runs.
func AddFunctions(m *miniredis.Miniredis) error {
	f := &functions{redis: m, libraries: map[string][]string{}, byName: map[string]*function{}}
	f.out, f.in = bufio.NewWriter(&f.reply), bufio.NewReader(&f.reply)
	f.inner = server.NewPeer(f.out)
	if err := f.takeContext(); err != nil {
		return err
	}
	return errors.Join(m.Server().Register("FUNCTION", f.locked(f.function)),
		m.Server().Register("FCALL", f.locked(f.fcall)),
		m.Server().Register("FCALL_RO", f.locked(f.fcall), server.ReadOnlyOption()))
}

// locked runs a command under the lock of the server. It refuses the command in a script or function, which holds the
// lock, and in a transaction.
func (f *functions) locked(run server.Cmd) server.Cmd {
	return func(c *server.Peer, command string, args []string) {
		switch {
		case f.contextOf(c, "nested").Bool():
			c.WriteError("ERR This Redis command is not allowed from script")
		case !f.contextOf(c, "transaction").IsNil():
			aborts := server.NewPeer(bufio.NewWriter(io.Discard))
			aborts.Ctx = c.Ctx
			f.redis.Server().Dispatch(aborts, []string{"GET"}) // a command with an error: EXEC will be refused
			c.WriteError("ERR the embedded Redis has no " + command + " in a transaction")
		default:
			f.redis.Lock()
			defer f.redis.Unlock()
			run(c, command, args)
		}
	}
}

// contextOf reads a field of the context that miniredis keeps for a client.
func (f *functions) contextOf(c *server.Peer, field string) reflect.Value {
	if c.Ctx == nil { // the first command of the client
		c.Ctx = reflect.New(reflect.TypeOf(f.inner.Ctx).Elem()).Interface()
	}
	return reflect.ValueOf(c.Ctx).Elem().FieldByName(field)
}

// takeContext takes the context that miniredis gives to the commands of a script. A command with this context does not
// wait for the lock of the server, because the script holds it.
func (f *functions) takeContext() error {
	const name = "STREAMCOUNTER.CONTEXT"
	err := f.redis.Server().Register(name, func(c *server.Peer, _ string, _ []string) {
		f.inner.Ctx = c.Ctx
		c.WriteOK()
	})
	if err != nil {
		return err
	}
	f.redis.Server().Dispatch(server.NewPeer(bufio.NewWriter(io.Discard)),
		[]string{"EVAL", "return redis.call('" + name + "')", "0"})
	if f.inner.Ctx == nil {
		return errors.New("this version of miniredis gives no context to the commands of scripts")
	}
	for _, field := range []string{"nested", "transaction", "selectedDB"} {
		if !f.contextOf(f.inner, field).IsValid() {
			return fmt.Errorf("the context of this version of miniredis has no field %s", field)
		}
	}
	return nil
}

// function answers FUNCTION.
func (f *functions) function(c *server.Peer, _ string, args []string) {
	switch sub := strings.ToUpper(strings.Join(args[:min(1, len(args))], "")); {
	case sub == "LOAD" && len(args) == 2:
		name, refusal := f.load(args[1])
		if refusal != "" {
			c.WriteError("ERR " + refusal)
			return
		}
		c.WriteBulk(name)
	case sub == "DELETE" && len(args) == 2:
		if f.libraries[args[1]] == nil {
			c.WriteError("ERR Library not found")
			return
		}
		for _, name := range f.libraries[args[1]] {
			delete(f.byName, name)
		}
		delete(f.libraries, args[1])
		c.WriteOK()
	case sub == "LIST" && len(args) == 1:
		f.list(c, "*")
	case sub == "LIST" && len(args) == 3 && strings.EqualFold(args[1], "LIBRARYNAME"):
		f.list(c, args[2])
	default:
		c.WriteError("ERR the embedded Redis has only FUNCTION LOAD, LIST and DELETE")
	}
}

// load reads a library and returns its name, or why it is refused, in the words of Redis.
func (f *functions) load(code string) (name, refusal string) {
	head, body, _ := strings.Cut(code, "\n")
	name, ok := strings.CutPrefix(head, "#!lua name=")
	switch {
	case !ok:
		return "", "Missing library metadata"
	case f.libraries[name] != nil:
		return "", fmt.Sprintf("Library '%s' already exists", name)
	}
	registered := map[string]*function{}
	if err := f.newState(registered).DoString("\n" + body); err != nil {
		return "", "Error registering functions: " + messageOf(err)
	}
	names := slices.Sorted(maps.Keys(registered))
	for _, function := range names {
		if f.byName[function] != nil {
			return "", fmt.Sprintf("Function %s already exists", function)
		}
	}
	if len(names) == 0 {
		return "", "No functions registered"
	}
	maps.Copy(f.byName, registered)
	f.libraries[name] = names
	return name, ""
}

// list answers FUNCTION LIST with the names of the libraries, without their functions.
func (f *functions) list(c *server.Peer, pattern string) {
	var names []string
	for name := range f.libraries {
		if fits, err := path.Match(pattern, name); fits && err == nil {
			names = append(names, name)
		}
	}
	c.WriteLen(len(names))
	for _, name := range names {
		c.WriteLen(6)
		for _, text := range []string{"library_name", name, "engine", "LUA", "functions"} {
			c.WriteBulk(text)
		}
		c.WriteLen(0)
	}
}
