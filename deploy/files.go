// Package deploy owns what is shipped to run streamcounter with: image, compose
// file, the configuration of Redis, NATS and Prometheus, and a dashboard. Its test reads the
// files as the programs do. Here are those that code of ours needs: who may do
// what on each server, which doctor compares with and the tests run under.
package deploy

import _ "embed"

// UsersACL is an ACL file of Redis for the prefix sc: users work, serve,
// producer, doctor and operator, without passwords, so that nobody can log in as
// shipped. Such a file has no room for comments; docs/operations.md has them. The
// default user is off, so nobody can be this user, but it keeps all rights: Redis
// replays the append-only file as this user, and checks its rights at each EXEC.
//
//go:embed users.acl
var UsersACL string

// NATSPermissions is a part of a NATS server's configuration for the prefix sc:
// accounts with the users relay, subscriber, alerts, watch and doctor, with passwords from its environment.
//
//go:embed nats-permissions.conf
var NATSPermissions string
