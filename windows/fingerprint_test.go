package windows

import (
	"reflect"
	"testing"
	"time"
)

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
