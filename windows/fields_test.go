package windows

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

func code[T ~string](names ...T) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = "`" + string(name) + "`"
	}
	return strings.Join(quoted, ", ")
}

// The table of docs/rules.md has the fields that Parse accepts. Options document themselves. The rows of the other
// fields have the limits of this package.
func TestRuleFieldsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/rules.md")
	testkit.Must(t, err)
	_, table, _ := strings.Cut(string(page), "<!-- fields -->\n")
	table, _, found := strings.Cut(table, "| `"+options[0].fields[0].name+"` |")
	if !found {
		t.Fatal("docs/rules.md has no table of fields")
	}
	for _, limits := range []string{
		"`algorithm` | name | " + code(DefaultAlgorithm) + " |", "its own: " + code(Algorithms...) + " (",
		fmt.Sprintf("1 to %d windows", MaxWindows),
		fmt.Sprintf("length of the window: %s to %s,", inDays(MinWindow), inDays(MaxWindow)),
		fmt.Sprintf("ends after this time, %s to %s.", inDays(MinWindow), inDays(MaxReservation)),
		fmt.Sprintf("values of this field are admitted, up to %d:", MaxDistinct),
		fmt.Sprintf("newest values, 1 to %d,", MaxPublished),
	} {
		if !strings.Contains(table, limits) {
			t.Errorf("docs/rules.md does not say %q of a field", limits)
		}
	}
	for _, o := range options {
		for _, f := range o.fields {
			table += fmt.Sprintf("| `%s` | %s | %s | %s |\n", f.name, f.form, f.def, f.meaning)
		}
	}
	testkit.Section(t, "../docs/rules.md", "fields", table)

	var names []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1) {
		names = append(names, row[1])
	}
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

// Each field of a rule changes the fingerprint, also a field that is added to Rule later.
func TestFingerprintHasEachField(t *testing.T) {
	of := func(list ...*Rule) string { return (&Rules{list: list}).Fingerprint() }
	plain := func() *Rule { return &Rule{Name: "a", Windows: []Window{{Limit: 1, Per: time.Second}}} }
	seen := map[string]string{of(plain()): "the rule itself"}
	note := func(what, print string) {
		t.Helper()
		if before := seen[print]; before != "" {
			t.Errorf("%s has the fingerprint of %s", what, before)
		}
		seen[print] = what
	}
	var change func(v reflect.Value)
	change = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			v.SetString("other")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int, reflect.Int64:
			v.SetInt(77)
		case reflect.Slice:
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		case reflect.Struct:
			change(v.Field(0))
		default:
			t.Fatalf("a field of kind %s: extend the test", v.Kind())
		}
	}
	for i := range reflect.TypeFor[Rule]().NumField() {
		r := plain()
		change(reflect.ValueOf(r).Elem().Field(i))
		note(reflect.TypeFor[Rule]().Field(i).Name, of(r))
	}
	for i := range reflect.TypeFor[Window]().NumField() {
		r := plain()
		change(reflect.ValueOf(&r.Windows[0]).Elem().Field(i))
		note("window "+reflect.TypeFor[Window]().Field(i).Name, of(r))
	}
	b := plain()
	b.Name = "b"
	note("a, b", of(plain(), b))
	note("b, a", of(b, plain()))
	if first, again := of(plain()), of(plain()); first != again {
		t.Error("the same rule has two fingerprints")
	}
}
