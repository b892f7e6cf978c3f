package windows

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

const none, required = "none", "required"

// ruleFields documents each field of a rules file: the table of docs/rules.md.
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
	{"buckets", "number", code(fmt.Sprint(DefaultBuckets)), fmt.Sprintf(
		"parts that a window is divided into, 1 to %d; only with `%s`", MaxBuckets, SlidingBuckets)},
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
	{"windows[].publish_values", "number", none, fmt.Sprintf("so many of the newest values, 1 to %d, go with "+
		"decisions and alerts", MaxPublished)},
	{"alerts", "list of percentages", none,
		"1% to 99% of each window's limit. 100% is always one more level: throttled"},
	{"hold", "duration", code(inDays(DefaultHold)), "a throttle or alert lasts at least this long, up to " +
		inDays(MaxHold)},
	{"penalty", "list of durations", none, fmt.Sprintf("a throttle lasts at least the first, the next one the second: "+
		"see [Penalties](#penalties). Up to %d steps of %s to %s, none shorter than the one before", MaxPenalties,
		inDays(MinPenalty), inDays(MaxPenalty))},
	{"forget", "duration", code(inDays(DefaultForget)),
		fmt.Sprintf("time after a penalty in which a new throttle gets "+
			"the next step, %s to %s", inDays(MinPenalty), inDays(MaxWindow))},
	{"on_deny", oneOf(OnDenySkip, OnDenyCharge), code(OnDenySkip),
		"`charge`: a denied request counts too, because it happened anyway"},
	{"on_error", oneOf(OnErrorAllow, OnErrorDeny, OnErrorLocal), code(OnErrorAllow),
		"answer of a check while Redis does not answer: `allow` (fail open), `deny` (fail closed, 503), or " +
			"`local` (each process counts on its own, up to limit / `--instances`)"},
	{"on_expire", oneOf(OnExpireCharge, OnExpireFree), code(OnExpireCharge),
		"what happens to the units of a reservation that expires"},
	{"shadow", "`true` or `false`", code("false"),
		"`true`: evaluate and publish, never deny. See [Shadow rules](#shadow-rules)"},
	{"lease", "duration", none, fmt.Sprintf("serve [hot keys](hot-keys.md) from memory for this time, %s to %s, no "+
		"longer than the shortest window; not beside `in_flight` or `penalty`", inDays(MinLease), inDays(MaxLease))},
}

func code[T ~string](names ...T) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = "`" + string(name) + "`"
	}
	return strings.Join(quoted, ", ")
}

func oneOf[T ~string](names ...T) string {
	last := len(names) - 1
	return code(names[:last]...) + " or " + code(names[last])
}

// docs/rules.md has these fields, and Parse takes no others.
func TestRuleFieldsAreDocumented(t *testing.T) {
	var names []string
	var b strings.Builder
	b.WriteString("| field | value | default | meaning |\n|---|---|---|---|\n")
	for _, f := range ruleFields {
		names = append(names, f.name)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.value, f.def, f.meaning)
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

// parsedFields are those that the error of an unknown field names.
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
