package lua

import (
	"embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

//go:embed *.lua
var files embed.FS

var scripts sync.Map // operation/algorithms → *redis.Script

func script(op string, algorithms []string) *redis.Script {
	name := op + "/" + strings.Join(algorithms, "+")
	if s, ok := scripts.Load(name); ok {
		return s.(*redis.Script)
	}
	s, _ := scripts.LoadOrStore(name, redis.NewScript(Source(op, algorithms...)))
	return s.(*redis.Script)
}

// Source composes the text of one operation: the algorithms, then the operation, each
// after the files that it includes. Comments stay: Redis compiles a script once.
func Source(op string, algorithms ...string) string {
	var b strings.Builder
	included := map[string]bool{}
	for _, name := range append(slices.Clone(algorithms), op) {
		include(&b, included, name)
	}
	return b.String()
}

// isFile says whether there is a script file of this name.
func isFile(name string) bool {
	_, err := files.Open(name + ".lua")
	return err == nil
}

// includes is a line such as "-- include: prelude, totals" in a script file.
var includes = regexp.MustCompile(`(?m)^-- include: (.+)$`)

// include writes a file after those that it includes, each once. It panics where there
// is no such file: the names stand in this package's own code and files.
func include(b *strings.Builder, included map[string]bool, name string) {
	if included[name] {
		return
	}
	included[name] = true
	text, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic(fmt.Errorf("no script file for %q: %w", name, err))
	}
	for _, line := range includes.FindAllSubmatch(text, -1) {
		for _, other := range strings.Split(string(line[1]), ", ") {
			include(b, included, other)
		}
	}
	b.Write(text)
}
