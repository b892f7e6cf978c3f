package windows

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

const none, required = "none", "required"

// ruleFields documents the fields of a rules file that are no options, for the table of docs/rules.md. Options
// document themselves.
var ruleFields = []struct {
	name    string // of a field in windows: windows[].name
	value   string // its form
	def     string // the default
	meaning string
}{
	{"name", "text", required, "1 to 64 of a-z, 0-9 and `-`, unique in the file"},
	{"match", "pattern", none, "the whole key: `*` matches any characters, `?` any one, `\\` takes the next " +
		"character literally. A rule without `match` is a tier: only an [override](overrides.md) chooses it"},
	{"algorithm", "name", code(DefaultAlgorithm), "counts each window that has no algorithm of its own: " +
		code(Algorithms...) + " ([algorithms.md](algorithms.md))"},
	{"windows", "list", required, fmt.Sprintf("1 to %d windows. A check must be admitted by all of them", MaxWindows)},
	{"windows[].limit", "number", required, "units that the window admits, 1 to 10^12"},
	{"windows[].per", "duration or period", "required, or `in_flight`",
		fmt.Sprintf("length of the window: %s to %s, or `day`, `week`, "+
			"`month`, `year` of the [calendar](#calendar-windows)", inDays(MinWindow), inDays(MaxWindow))},
	{"windows[].zone", "IANA name", code("UTC"), "time zone of a calendar window"},
	{"windows[].starts", "day", "see [below](#calendar-windows)", "when the period of a calendar window begins"},
	{"windows[].in_flight", "duration", none, fmt.Sprintf("in place of `per`: `limit` units may be reserved at once. "+
		"A reservation that is not renewed ends after this time, %s to %s. Such a rule takes "+
		"[reservations](reservations.md) only", inDays(MinWindow), inDays(MaxReservation))},
	{"windows[].algorithm", "name", "the rule's", "counts this window"},
	{"windows[].distinct", "name of a field", none, fmt.Sprintf("`limit` different values of this field are admitted, "+
		"up to %d: see [Different values](#different-values)", MaxDistinct)},
	{"windows[].normalize", "list of `lower`, `trim`", none, "spellings that are one value"},
	{"windows[].hash", "`true` or `false`", code("false"), "Redis stores a keyed hash instead of the value. " +
		"`hash_key: FILE`, at the top of the rules file, names the secret"},
	{"windows[].value_from", "name of an entry", none, "the entry of an Envoy descriptor that has the value. It is " +
		"no part of the key"},
	{"windows[].publish_values", "number", none, fmt.Sprintf("so many of the newest values, 1 to %d, go with "+
		"decisions and alerts", MaxPublished)},
}

func code[T ~string](names ...T) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = "`" + string(name) + "`"
	}
	return strings.Join(quoted, ", ")
}

// docs/rules.md has these fields, and Parse accepts no others.
func TestRuleFieldsAreDocumented(t *testing.T) {
	var names []string
	var b strings.Builder
	b.WriteString("| field | value | default | meaning |\n|---|---|---|---|\n")
	row := func(name string, columns ...string) {
		names = append(names, name)
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, strings.Join(columns, " | "))
	}
	for _, f := range ruleFields {
		row(f.name, f.value, f.def, f.meaning)
	}
	for _, o := range options {
		for _, f := range o.fields {
			row(f.name, f.form, f.def, f.meaning)
		}
	}
	testkit.Section(t, "../docs/rules.md", "fields", b.String())

	taken := parsedFields(t, "rules: [{x: 1}]")
	at := slices.Index(taken, "windows") + 1
	for i, name := range parsedFields(t, "rules: [{name: a, windows: [{x: 1}]}]") {
		taken = slices.Insert(taken, at+i, "windows[]."+name)
	}
	if !slices.Equal(names, taken) {
		t.Errorf("documented are\n%v, Parse takes\n%v", names, taken)
	}
}

// parsedFields returns the fields in the error of an unknown field.
func parsedFields(t *testing.T, text string) []string {
	t.Helper()
	_, err := Parse("rules.yml", []byte(text))
	if err == nil {
		t.Fatalf("%s is taken", text)
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	_, list, found := strings.Cut(line, `unknown field "x": want `)
	if !found {
		t.Fatal(err)
	}
	return strings.Split(list, ", ")
}

// `rules diff` says that a change of penalty or forget ends current penalties. The name of what counts a rule must
// then change, because the sweeper compares this name.
func TestAChangedPenaltyIsCountedBySomethingElse(t *testing.T) {
	rule := func(forget time.Duration, steps ...time.Duration) *Rule {
		r := Rule{Name: "a", Match: "*", Windows: []Window{{Limit: 1, Per: time.Minute}}}
		r.Penalty, r.Forget = steps, forget
		return r.withDefaults()
	}
	old := rule(time.Hour, time.Minute, time.Hour)
	for name, c := range map[string]struct {
		rule *Rule
		same bool
	}{
		"the same":       {rule(time.Hour, time.Minute, time.Hour), true},
		"another forget": {rule(2*time.Hour, time.Minute, time.Hour), false},
		"another step":   {rule(time.Hour, time.Minute, 2*time.Hour), false},
		"none":           {rule(0), false},
	} {
		if same := c.rule.countedBy() == old.countedBy(); same != c.same {
			t.Errorf("%s: counted by the same: %t", name, same)
		}
		if same := len(c.rule.OptionChanges(old)) == 0; same != c.same {
			t.Errorf("%s: changes %v", name, c.rule.OptionChanges(old))
		}
	}
}
