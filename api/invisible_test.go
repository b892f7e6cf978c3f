package api_test

import (
	"errors"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

func TestInvisibleCharactersAreRefused(t *testing.T) {
	for _, r := range "\u202A\u202E\u2066\u2069\u200E\u200B\u2060\uFEFF" +
		"\u00AD\u034F\u115F\u180E\u2061\u206F\u3164\uFFA0\uFFF9\U000E0041" {
		if err := api.ValidateKey("a" + string(r) + "b"); !errors.Is(err, api.ErrBadKey) {
			t.Errorf("%U: %v", r, err)
		}
	}
	for _, key := range []string{"שלום", "👩\u200D🚀", "می\u200Cخواهم", "é"} {
		if err := api.ValidateKey(key); err != nil {
			t.Error(err)
		}
	}
}
