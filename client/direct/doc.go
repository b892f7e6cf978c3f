// Package direct is a client.Checker straight against Redis, for services that
// share its network and want no server in between. It takes rules as `serve`
// does and counts in the same keys. It is a package of its own so that others
// do not carry a Redis client. Read redis.go next.
package direct
