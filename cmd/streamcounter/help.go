package main

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// sections divide the flags of a command that has many: title → the flags in it. A flag belongs to the first section
// that matches.
var sections = []struct {
	title string
	has   *regexp.Regexp
}{
	{"Common Flags", regexp.MustCompile(
		`^(redis|nats|rules|http|grpc|tokens|extractors|instances|sinks|prefix|log-level|help)$`)},
	{"TLS and Access Flags", regexp.MustCompile(`^(tls-.+|open|.+-(ca|cert|key|creds|nkey))$`)},
	{"Envoy Flags", regexp.MustCompile(`^rls-`)},
	{"Tuning Flags", regexp.MustCompile(``)},
}

// manyFlags is the number of flags from which help divides them into sections.
const manyFlags = 20

// helpWidth is the width of a line of flags; pflag would not break the lines.
const helpWidth = 110

// addFlagSections runs once, because cobra keeps the functions of templates for the whole process.
var addFlagSections = sync.OnceFunc(func() { cobra.AddTemplateFunc("flagSections", flagSections) })

// groupFlags makes the help of root, and of all commands below it, show flags in sections.
func groupFlags(root *cobra.Command) {
	addFlagSections()
	const flat = "Flags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}"
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), flat, "{{flagSections .LocalFlags}}", 1))
}

// flagSections returns the help text of a set of flags, under one title or several.
func flagSections(all *pflag.FlagSet) string {
	count := 0
	all.VisitAll(func(*pflag.Flag) { count++ })
	if count < manyFlags {
		return "Flags:\n" + strings.TrimRight(all.FlagUsagesWrapped(helpWidth), "\n ")
	}
	var parts []string
	for i, s := range sections {
		these := pflag.NewFlagSet("", pflag.ContinueOnError)
		all.VisitAll(func(f *pflag.Flag) {
			if sectionOf(f.Name) == i {
				these.AddFlag(f)
			}
		})
		if these.HasFlags() {
			parts = append(parts, s.title+":\n"+strings.TrimRight(these.FlagUsagesWrapped(helpWidth), "\n "))
		}
	}
	return strings.Join(parts, "\n\n")
}

// sectionOf returns the index in sections for a flag.
func sectionOf(name string) int {
	i := 0
	for !sections[i].has.MatchString(name) {
		i++
	}
	return i
}

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write man pages, one for each command",
		Long:    "Writes man pages of section 1 into DIR, which must exist: one for each command.",
		Example: "  mkdir -p ~/.local/share/man/man1 && streamcounter man ~/.local/share/man/man1",
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			root.DisableAutoGenTag = true // no date, so the same program writes the same pages
			verbatim(root)
			header := &doc.GenManHeader{Title: "STREAMCOUNTER", Section: "1", Source: "streamcounter " + version}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("writing man pages: %w", err)
			}
			return nil
		},
	}
}

// verbatim keeps the lines of long descriptions as they are: the generator takes them for Markdown.
func verbatim(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		verbatim(sub)
	}
	if cmd.Long != "" {
		cmd.Long = "```\n" + cmd.Long + "\n```"
	}
}
