package lua

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

//go:embed *.lua */*.lua
var embedded embed.FS

// files has the text of each Lua file by its name, without folder and ending; blocks are the names of
// those whose local names nobody else sees.
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

// The functions of the library differ in what Redis lets them do.
type function string

const (
	writes function = ""      // refused as a whole where memory is full or replicas are missing
	frees  function = "_free" // runs also where memory is full
	looks  function = "_look" // writes nothing: runs also where a write is refused
)

// flags are the names of a function's flags in Redis.
var flags = map[function]string{writes: "", frees: "allow-oom", looks: "no-writes"}

// LibraryPrefix begins the names of our libraries, of all versions.
const LibraryPrefix = "streamcounter_"

// Library is the text of the library of Redis Functions, and its name: that of its text, so that those of
// two versions stand side by side.
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

// order gives the names of all files: algorithms and what they include before the operations.
func order() []string {
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if blocks[a] != blocks[b] {
			if blocks[b] {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	return names
}

// libraryText puts the files into one function, which the first call runs: while Redis loads a library, it has
// neither redis.call nor string nor math.
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

// include writes a file after those that it includes, each once. It panics where there
// is no such file: the names stand in this package's own code and files.
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
