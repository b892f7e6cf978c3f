package streamtest

import (
	"os"
	"testing"
)

// Environment variables that choose the servers.
const (
	// EnvRequire, set to 1, makes a missing real server a failure and
	// containers the only source of the shared ones.
	EnvRequire = "STREAMCOUNTER_TEST_REQUIRE"
	// EnvRedisImage names the image of Redis; DefaultRedisImage if empty.
	EnvRedisImage = "STREAMCOUNTER_TEST_REDIS_IMAGE"
	// EnvNATSImage names the image of NATS; DefaultNATSImage if empty.
	EnvNATSImage = "STREAMCOUNTER_TEST_NATS_IMAGE"
	// EnvDocker, set to 0, does without containers, as where there is no Docker.
	EnvDocker = "STREAMCOUNTER_TEST_DOCKER"
	// EnvRun is put on every container as the label ContainerLabel, so that
	// whoever started the tests can remove what a killed process left.
	EnvRun = "STREAMCOUNTER_TEST_RUN"
	// EnvProgram is the path of the program, where whoever starts the tests has built it.
	EnvProgram = "STREAMCOUNTER_TEST_PROGRAM"
)

// Images used where the environment names none.
const (
	DefaultRedisImage = "redis:7.0"
	DefaultNATSImage  = "nats:2.12"
)

func required() bool { return os.Getenv(EnvRequire) == "1" }

// missing ends a test that cannot have its server: a skip, or a failure where
// real servers are required. remedy says what would make it run.
func missing(t testing.TB, server, remedy string, why error) {
	t.Helper()
	if required() {
		t.Fatalf("%v: %s is required (%s=1)", why, server, EnvRequire)
	}
	t.Skipf("not tested on %s (%v): %s", server, why, remedy)
}
