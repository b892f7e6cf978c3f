package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// storyFile is the line above a file of a story.
var storyFile = regexp.MustCompile(`(?m)^-- (\S+) --\n`)

// A story has command lines and what they say: "$ COMMAND", its exit code, and then either each line of the output, as
// "> LINE", or texts in the output, as "< TEXT". A word that is the name of a file of the story means that file, and
// after "<" it is the input. {{x 3}} is xxx. If one is dev.yml, the commands go to a dev with these rules, and append to its Redis.
func TestCommands(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, above string, steps []string) (out []string) {
		dir, server, redis, words, files := t.TempDir()+"/", "", "", []string{}, map[string]string{}
		names := storyFile.FindAllStringSubmatch(above, -1)
		for i, text := range storyFile.Split(testkit.Repeat(above), -1)[1:] {
			name := names[i][1]
			files[name] = text
			testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			words = append(words, " "+name+" ", " "+dir+name+" ")
			if name == "dev.yml" {
				d := startDev(t, "--check-timeout", "5s", "--rules", dir+name)
				server, redis = " --http "+d.at, " --redis "+d.redis
			}
		}
		for len(steps) > 0 {
			end := 1
			for end < len(steps) && !strings.HasPrefix(steps[end], "$ ") {
				end++
			}
			command, input, _ := strings.Cut(testkit.Repeat(steps[0]), " < ")
			to := server
			if strings.HasPrefix(command, "$ append ") {
				to = redis
			}
			line := strings.NewReplacer(words...).Replace(strings.ReplaceAll(command[1:]+to+" ", " ", "  "))
			code, said, errs := runProgram(t, files[input], strings.Fields(line)...)
			said = strings.ReplaceAll(said+errs, dir, "")
			out = append(out, steps[0])
			if want := steps[1:end]; saysAll(want, code, said) {
				out = append(out, want...)
			} else {
				out = append(out, fmt.Sprint(code))
				for one := range strings.Lines(said) {
					out = append(out, "> "+strings.TrimSuffix(one, "\n"))
				}
			}
			steps = steps[end:]
		}
		return out
	})
}

// saysAll reports whether an exit code is wanted, and an output has all texts that are wanted in it.
func saysAll(want []string, code int, output string) bool {
	for _, w := range want[min(1, len(want)):] {
		if text, ok := strings.CutPrefix(w, "< "); !ok || !strings.Contains(output, text) {
			return false
		}
	}
	return len(want) > 0 && want[0] == fmt.Sprint(code)
}
