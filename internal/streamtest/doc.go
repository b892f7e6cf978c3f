// Package streamtest gives tests the servers they need: a real Redis and a
// real NATS shared by the tests of one package, private ones that a test may
// stop, kill or freeze, embedded ones, and a Redis Cluster whose slots move and
// whose masters die. Tests alone import it.
//
// A package that takes a shared server says so once:
//
//	func TestMain(m *testing.M) { streamtest.Main(m) }
//
// Shared servers run in containers. Without Docker they are programs on PATH or in
// this module. Private servers are always programs. If a server is missing, the test
// is skipped, and a message says what was not tested. CI sets STREAMCOUNTER_TEST_REQUIRE=1:
// then the test fails instead, and shared servers must run in containers.
//
// Shared servers keep goroutines for as long as the process lives. A test
// that looks for leaked goroutines takes its servers first, then the list of
// goroutines to ignore.
//
// Tests that run parts of ours take the users that are shipped for them: RedisAs
// on the shared Redis, NewSecuredRedis and NewSecuredNATS for servers that know
// nobody else.
//
// Read redis.go next, then users.go, cluster.go and wait.go.
package streamtest
