package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"

	"github.com/streamcounter/streamcounter/api"
)

// The NATS subject of a key's decisions, and how to find out what is wrong with a key.
func ExampleThrottleSubject() {
	fmt.Println(api.ThrottleSubject("sc", "api", "user:42"))
	fmt.Println(api.ThrottleSubject("sc", "api", "müller"))
	err := api.ValidateKey("two\nlines")
	fmt.Println(errors.Is(err, api.ErrBadKey))
	// Output:
	// sc.throttle.api.user:42
	// sc.throttle.api.~bcO8bGxlcg
	// true
}

// A subscriber reads the payload of a message.
func ExampleTransition() {
	var t api.Transition
	payload := `{"rule":"api","key":"user:42","state":"throttled",` +
		`"level":100,"limit":100,"window_ms":60000,"version":7}`
	if err := json.Unmarshal([]byte(payload), &t); err != nil {
		log.Fatal(err)
	}
	fmt.Println(t.IsThrottle(), t.Subject("sc"))
	// Output: true sc.throttle.api.user:42
}
