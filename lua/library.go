package lua

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

//go:embed *.lua */*.lua
var embedded embed.FS

// files has the text of each Lua file by its name, without folder and ending. blocks are the names of
// the files whose local names no other file sees.
var files, blocks = func() (map[string]string, map[string]bool) {
	texts, scoped := map[string]string{}, map[string]bool{}
	_ = fs.WalkDir(embedded, ".", func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := embedded.ReadFile(at)
		name := strings.TrimSuffix(path.Base(at), ".lua")
		texts[name], scoped[name] = string(text), path.Dir(at) == "operations"
		return err
	})
	for _, a := range all {
		scoped[a.Name] = true
	}
	return texts, scoped
}()

// Source composes the script of one operation for EVALSHA: the algorithms, then the operation, each
// after the files that it includes.
func Source(op string, algorithms ...string) string {
	var b strings.Builder
	included := map[string]bool{}
	b.WriteString("local call_keys, call_args = KEYS, ARGV\n")
	for _, name := range append(slices.Clone(algorithms), op) {
		include(&b, included, name)
	}
	b.WriteString("return run_operation(call_keys, call_args)\n")
	return b.String()
}

// function is one of the library's functions. They differ in what Redis allows them to do.
type function string

const (
	writes function = ""      // refused as a whole if memory is full or replicas are missing
	frees  function = "_free" // also runs if memory is full
	looks  function = "_look" // writes nothing: also runs if writes are refused
)

// flags are the names of a function's flags in Redis.
var flags = map[function]string{writes: "", frees: "allow-oom", looks: "no-writes"}

// LibraryPrefix is the start of the names of streamcounter's libraries, in all versions.
const LibraryPrefix = "streamcounter_"

// Library is the text of the library of Redis Functions, and its name. The name is computed from the text, so that
// a server can have the libraries of two versions at the same time.
var Library = sync.OnceValue(func() (l struct{ Name, Text string }) {
	var b strings.Builder
	included := map[string]bool{}
	include(&b, included, "library")
	for _, name := range order() {
		include(&b, included, name)
	}
	body := b.String()
	sum := sha256.Sum256([]byte(libraryText("", body)))
	l.Name = LibraryPrefix + hex.EncodeToString(sum[:6])
	l.Text = libraryText(l.Name, body)
	return l
})

// order returns the names of all files: first those that others include, then the blocks (algorithms and operations).
func order() (first []string) {
	var last []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if blocks[name] {
			last = append(last, name)
		} else {
			first = append(first, name)
		}
	}
	return append(first, last...)
}

// libraryText puts the files into one function, which the first call runs, because redis.call, string and math do not
// exist while Redis loads a library.
func libraryText(name, body string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#!lua name=%s\nlocal function setup()\n%sreturn run_operation\nend\n", name, body)
	b.WriteString("local run\nlocal function call(keys, args)\n  run = run or setup()\n  return run(keys, args)\nend\n")
	for _, f := range []function{writes, frees, looks} {
		flag := ""
		if flags[f] != "" {
			flag = ", flags = {'" + flags[f] + "'}"
		}
		fmt.Fprintf(&b, "redis.register_function{function_name = '%s%s', callback = call%s}\n", name, f, flag)
	}
	return b.String()
}

// includes is a line such as "-- include: library, totals" in a Lua file.
var includes = regexp.MustCompile(`(?m)^-- include: (.+)$`)

// include writes a file after the files that it includes, each once. It panics if there
// is no such file: the names are only in this package's code and files.
func include(b *strings.Builder, included map[string]bool, name string) {
	if included[name] {
		return
	}
	included[name] = true
	text, known := files[name]
	if !known {
		panic(fmt.Errorf("no Lua file for %q", name))
	}
	for _, line := range includes.FindAllStringSubmatch(text, -1) {
		for _, other := range strings.Split(line[1], ", ") {
			include(b, included, other)
		}
	}
	if blocks[name] {
		text = "do\n" + text + "end\n"
	}
	b.WriteString(text)
}
