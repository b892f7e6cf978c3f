package backend

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// Replies to a user with a password go to an inbox of that user; a token is never part of a subject.
func TestOwnInbox(t *testing.T) {
	for target, want := range map[string]string{
		"nats://worker:pw@h:4222": "_INBOX.worker", "nats://worker:pw@a,nats://worker:pw@b": "_INBOX.worker",
		"nats://s3cret-token@h:4222": "", "nats://s3cret-token:@h:4222": "", "nats://h:4222": "",
		"nats://a.b:pw@h": "", "%zz": "",
	} {
		var o nats.Options
		if err := ownInbox(target)(&o); err != nil || o.InboxPrefix != want {
			t.Errorf("%s: inbox %q (%v), want %q", target, o.InboxPrefix, err, want)
		}
	}
}
