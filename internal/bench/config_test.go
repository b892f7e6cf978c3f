package bench

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/windows"
)

func TestZeroMeansDefault(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Fatal(err)
	}
	c := (Config{Deny: true}).withDefaults()
	if c.Entries != 100 || c.limit() != 100 {
		t.Errorf("with Deny there are %d entries and a limit of %d, want 100 and 100", c.Entries, c.limit())
	}
	if c := (Config{}).withDefaults(); c.Entries != 0 || c.limit() != 1_000_000_000 || c.Per != time.Minute {
		t.Errorf("defaults are %d entries, %d per %s", c.Entries, c.limit(), c.Per)
	}
}

func TestErrorsNameFlagAndValue(t *testing.T) {
	for want, c := range map[string]Config{
		`operation "chek": expected append, fold, check, peek`: {Operations: []string{Check, "chek"}},
		`--algorithm is "guess": expected all or some of sliding-log`: {
			Algorithms: []string{windows.DefaultAlgorithm, "guess"}},
		`--keys is -1: expected 1 to`:                                       {Keys: -1},
		`--skew is "pareto": expected uniform or zipf`:                      {Skew: "pareto"},
		`--zipf-s is 1: expected a number above 1`:                          {ZipfS: 1},
		`--zipf-s is NaN: expected a number above 1`:                        {ZipfS: math.NaN()},
		`--entries is -5: expected 0 to`:                                    {Entries: -5},
		`--limit is -1: expected 1 to 1000000000000`:                        {Limit: -1},
		`--limit is 5 and --deny is given`:                                  {Limit: 5, Deny: true},
		`--per is 9ms: expected 10ms to 8784h0m0s`:                          {Per: 9 * time.Millisecond},
		`--per is 10.5ms: expected 10ms to 8784h0m0s in whole milliseconds`: {Per: 10500 * time.Microsecond},
		`--connections is -2: expected 1 to 10000`:                          {Connections: -2},
		`--operations is -1: expected 0 to`:                                 {Count: -1},
		`--duration is -1s: expected at least 1ms`:                          {Duration: -time.Second},
		`--batch is 10001: expected 1 to 10000`:                             {Batch: 10001},
		`--rate is -1: expected checks per second up to`:                    {Rate: -1},
		`--rate is NaN: expected`:                                           {Rate: math.NaN()},
		`--partitions is 5000: expected 1 to 4096`:                          {Partitions: 5000},
	} {
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
		if report, ran := Run(t.Context(), nil, c); report != nil || ran == nil {
			t.Errorf("Run took %+v", c)
		}
	}
}
