package streamtest

import (
	"os"
	"testing"
)

// Environment variables that choose the servers.
const (
	// EnvRequire, set to 1, makes a missing real server a failure. Shared servers must then run in containers.
	EnvRequire = "STREAMCOUNTER_TEST_REQUIRE"
	// EnvRedisImage names the image of Redis; DefaultRedisImage if empty.
	EnvRedisImage = "STREAMCOUNTER_TEST_REDIS_IMAGE"
	// EnvNATSImage names the image of NATS; DefaultNATSImage if empty.
	EnvNATSImage = "STREAMCOUNTER_TEST_NATS_IMAGE"
	// EnvDocker, set to 0, disables containers, as if there were no Docker.
	EnvDocker = "STREAMCOUNTER_TEST_DOCKER"
	// EnvRun is set on every container as the label ContainerLabel, so that the caller of the tests can remove the
	// containers of a killed process.
	EnvRun = "STREAMCOUNTER_TEST_RUN"
	// EnvProgram is the path of the program, if the caller of the tests has built it.
	EnvProgram = "STREAMCOUNTER_TEST_PROGRAM"
)

// Images that are used if the environment names none.
const (
	DefaultRedisImage = "redis:7.0"
	DefaultNATSImage  = "nats:2.12"
)

func required() bool { return os.Getenv(EnvRequire) == "1" }

// missing ends a test whose server cannot be started: as skipped, or as failed if real servers are required. remedy
// says what would make it run.
func missing(t testing.TB, server, remedy string, why error) {
	t.Helper()
	if required() {
		t.Fatalf("%v: %s is required (%s=1)", why, server, EnvRequire)
	}
	t.Skipf("not tested on %s (%v): %s", server, why, remedy)
}
