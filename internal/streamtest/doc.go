// Package streamtest starts the servers that tests need: a real Redis and a real NATS shared by the tests of one
// package, private ones that a test may stop, kill or freeze, embedded ones, and a Redis Cluster in which a test can
// move slots and kill masters. Only tests import it.
//
// A package that uses a shared server declares it once:
//
//	func TestMain(m *testing.M) { streamtest.Main(m) }
//
// Shared servers run in containers. Without Docker they are programs on PATH or in
// this module. Private servers are always programs. If a server is missing, the test
// is skipped, and a message says what was not tested. CI sets STREAMCOUNTER_TEST_REQUIRE=1:
// then the test fails instead, and shared servers must run in containers.
//
// Shared servers keep goroutines for as long as the process lives. A test that looks for leaked goroutines must first
// get its servers, and then take the list of goroutines to ignore.
//
// Tests that run our processes use the users of deploy/ for them: RedisAs on the shared Redis, NewSecuredRedis and
// NewSecuredNATS for servers that have no other users.
//
// Read redis.go next, then users.go, cluster.go and wait.go.
package streamtest
