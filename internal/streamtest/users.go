package streamtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/deploy"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Prefix returns a prefix for keys and subjects that no other test has, in this process or another: "t-" and ten hex
// digits.
func Prefix(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("t-%010x", rand.Uint64()>>24)
}

// sharedUsers are the users of deploy/users.acl, but only for the prefixes of tests.
var sharedUsers = strings.ReplaceAll(deploy.UsersACL, "~sc:", "~t-??????????:") // as in Prefix

// RedisAs returns the URL of the shared Redis for one user of deploy/users.acl, who may use keys under a Prefix
// there. If a command of a user was refused, the package's tests fail at their end.
func RedisAs(t testing.TB, user string) string {
	t.Helper()
	return as(Redis(t), user)
}

// as puts a test's name and password into a URL.
func as(url, user string) string {
	return strings.Replace(url, "://", "://"+user+":"+password(user)+"@", 1)
}

func password(user string) string { return user + "-password" }

// withPasswords gives each user of an ACL file a password, as an operator does when installing it.
func withPasswords(acl string) string {
	var b strings.Builder
	for line := range strings.Lines(acl) {
		name, rules, ok := strings.Cut(strings.TrimPrefix(line, "user "), " on ")
		if ok {
			line = "user " + name + " on >" + password(name) + " " + rules
		}
		b.WriteString(line)
	}
	return b.String()
}

// setUsers creates the users of an ACL file on a running server, except its default user, which the tests use.
func setUsers(url, acl string) error {
	return withRedis(url, func(ctx context.Context, c *redis.Client) error {
		for line := range strings.Lines(withPasswords(acl)) {
			fields := strings.Fields(line)
			if fields[1] == "default" {
				continue
			}
			if err := c.Do(ctx, append([]any{"ACL", "SETUSER", fields[1], "reset"},
				rulesOf(fields[2:])...)...).Err(); err != nil {
				return fmt.Errorf("making the user %s: %w", fields[1], err)
			}
		}
		return nil
	})
}

// rulesOf joins the words within parentheses, because ACL SETUSER accepts a selector as one argument.
func rulesOf(fields []string) (rules []any) {
	open := ""
	for _, f := range fields {
		open = strings.TrimSpace(open + " " + f)
		if strings.HasPrefix(open, "(") && !strings.HasSuffix(open, ")") {
			continue
		}
		rules, open = append(rules, open), ""
	}
	return rules
}

func withRedis(url string, do func(context.Context, *redis.Client) error) error {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	c := redis.NewClient(opts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return do(ctx, c)
}

// refused lists the refused commands of users, one line each. It leaves out wrong passwords, because they are not
// missing rights.
func refused(url string) (list []string, err error) {
	err = withRedis(url, func(ctx context.Context, c *redis.Client) error {
		entries, err := c.ACLLog(ctx, 100).Result()
		for _, e := range entries {
			if e.Reason == "auth" {
				continue
			}
			list = append(list, fmt.Sprintf("%s: %s %s (%s), %d times", e.Username, e.Reason, e.Object, e.Context,
				e.Count))
		}
		return err
	})
	return list, err
}

// SecuredRedis is a Redis for one test with the users of deploy/users.acl, plus passwords. Its default user is off.
type SecuredRedis struct{ *Server }

// NewSecuredRedis starts the server. It ends with the test.
func NewSecuredRedis(t testing.TB, args ...string) *SecuredRedis {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users.acl")
	write := func(text string) {
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	// The code that waits for the server has no password, so these users are created when the server runs.
	write("user default on nopass ~* &* +@all\n")
	s := &SecuredRedis{OwnRedis(t, append([]string{"--aclfile", path}, args...)...)}
	write(withPasswords(deploy.UsersACL))
	err := withRedis(s.URL(), func(ctx context.Context, c *redis.Client) error {
		return c.Do(ctx, "ACL", "LOAD").Err()
	})
	if err != nil {
		t.Fatalf("loading deploy/users.acl: %v", err)
	}
	s.ready = func(*Server) error { // after a restart it has these users
		return await(s.Addr(), s.gone, func(net.Conn) error {
			return withRedis(s.As("operator"), func(ctx context.Context, c *redis.Client) error {
				return c.Ping(ctx).Err()
			})
		})
	}
	return s
}

// As returns the server's URL for one of its users.
func (s *SecuredRedis) As(user string) string { return as(s.URL(), user) }

// Refused lists the refused commands of its users.
func (s *SecuredRedis) Refused(t testing.TB) []string {
	t.Helper()
	list, err := refused(s.As("operator"))
	testkit.Must(t, err)
	return list
}

// SecuredNATS is a NATS server for one test with the users of deploy/nats-permissions.conf.
type SecuredNATS struct {
	srv *server.Server
	log string // a path
}

// NewSecuredNATS starts the server, with more lines of configuration. It ends with the test.
func NewSecuredNATS(t testing.TB, lines ...string) *SecuredNATS {
	t.Helper()
	dir := t.TempDir()
	n := &SecuredNATS{log: filepath.Join(dir, "log")}
	for name, text := range map[string]string{
		"nats-permissions.conf": deploy.NATSPermissions,
		"nats.conf": fmt.Sprintf("listen: \"127.0.0.1:-1\"\nlog_file: %q\njetstream { store_dir: %q }\ninclude "+
			"nats-permissions.conf\n%s\n",
			n.log, filepath.Join(dir, "store"), strings.Join(lines, "\n")),
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for _, user := range []string{"relay", "subscriber", "alerts", "sinks", "watch", "doctor"} {
		t.Setenv("STREAMCOUNTER_NATS_"+strings.ToUpper(user)+"_PASSWORD", password(user))
	}
	opts, err := server.ProcessConfigFile(filepath.Join(dir, "nats.conf"))
	if err != nil {
		t.Fatalf("deploy/nats-permissions.conf: %v", err)
	}
	n.srv, _ = EmbeddedNATS(t, *opts)
	return n
}

// As returns the server's URL for one of its users.
func (n *SecuredNATS) As(user string) string { return as(n.srv.ClientURL(), user) }

// URL returns the server's address without a user. The server refuses a connection without a user.
func (n *SecuredNATS) URL() string { return n.srv.ClientURL() }

// Violations lists the refused operations of its users, as its log has them.
func (n *SecuredNATS) Violations() (list []string) {
	text, _ := os.ReadFile(n.log) // no file: it has logged nothing
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "Violation") {
			list = append(list, line)
		}
	}
	return list
}
