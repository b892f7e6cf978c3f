package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/deploy"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// roles are the users of deploy/users.acl for the processes and producers.
var roles = []string{"work", "serve", "producer"}

// replayed are the writes of the scripts, as Redis keeps them in the append-only file: it makes PEXPIREAT of PEXPIRE.
var replayed = []string{"set", "del", "unlink", "hset", "hincrby", "hdel", "zadd", "zrem", "zremrangebyrank", "xadd",
	"xack", "xdel", "xgroup|create", "pexpireat"}

// samples has one call of each command that a role needs or that is replayed, for ACL DRYRUN. E is an event stream and
// M the meta hash, because producers may touch no other keys.
var samples = []string{
	"ping", "info", "time", "scan 0", "fcall f 1 E", "fcall_ro f 1 E", "function load E", "function list",
	"eval 0 1 E", "evalsha 0 1 E", "exists E", "get E", "getrange E 0 1",
	"set E v", "setrange E 0 v", "del E",
	"unlink E",
	"hget M f", "hgetall M", "hset M f v", "hincrby M f 1", "hsetnx M f v", "hdel M f", "hlen M", "hscan M 0",
	"zadd E 1 m", "zrem E m", "zcard E", "zcount E 0 1", "zrange E 0 1", "zrangebyscore E 0 1", "zscore E m",
	"zremrangebyrank E 0 1",
	"xadd E * f v", "pexpire E 1", "pexpireat E 1",
	"pttl E", "xack E g 1-1", "xlen E", "xrange E - +", "xrevrange E + -", "xdel E 1-1",
	"xread STREAMS E 0", "xreadgroup GROUP g c STREAMS E >", "xautoclaim E g c 1 0", "xpending E g",
	"xgroup create E g 0", "xgroup delconsumer E g c", "xinfo stream E", "xinfo groups E",
	"xinfo consumers E g",
}

// needs returns the commands of a role, as they are written in the file (xgroup|create). A user needs the right to load
// our library only until it is loaded.
func needs(role string, loaded bool) []string {
	var out []string
	for line := range strings.Lines(deploy.UsersACL) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[1] != role {
			continue
		}
		for _, f := range fields {
			if name, ok := strings.CutPrefix(strings.TrimSuffix(f, ")"), "+"); ok && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return slices.DeleteFunc(out, func(name string) bool { return loaded && name == "function|load" })
}

// sampleOf returns a call of a command, as words.
func sampleOf(command string, k *stream.Keys) []any {
	for _, s := range samples {
		words := strings.Fields(s)
		if words[0] != command && (len(words) < 2 || words[0]+"|"+words[1] != command) {
			continue
		}
		var args []any
		for _, w := range words {
			switch w {
			case "E":
				w = k.Events(0)
			case "M":
				w = k.Meta()
			}
			args = append(args, w)
		}
		return args
	}
	return nil
}

var errNoUser = errors.New("no such user")

// lacking asks the server which of some commands a user may not run.
func lacking(ctx context.Context, c redis.UniversalClient, user string, k *stream.Keys, commands []string) (
	list []string, err error) {
	pipe := c.Pipeline()
	asked := make([]*redis.Cmd, len(commands))
	for i, command := range commands {
		asked[i] = pipe.Do(ctx, append([]any{"ACL", "DRYRUN", user}, sampleOf(command, k)...)...)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, command := range commands {
		reply, err := asked[i].Text()
		switch {
		case err != nil && strings.HasPrefix(err.Error(), "ERR User '"+user+"' not found"):
			return nil, errNoUser
		case err != nil:
			return nil, err
		case reply != "OK":
			list = append(list, command)
		}
	}
	return list, nil
}

// allowed is a script that asks which of some commands its own user may not run. Each argument is one, word by line.
// A user needs no right to ask this about itself.
const allowed = `local refused = {}
for i, command in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(command, '[^\n]+') do words[#words + 1] = word end
  if not redis.acl_check_cmd(unpack(words)) then refused[#refused + 1] = i end
end
return refused`

// lackingItself is lacking for the user of this client. A user that may call neither scripts nor functions lacks both.
func lackingItself(ctx context.Context, c redis.UniversalClient, k *stream.Keys, commands []string) (list []string,
	err error) {
	args := make([]any, len(commands))
	for i, command := range commands {
		var words []string
		for _, word := range sampleOf(command, k) {
			words = append(words, fmt.Sprint(word))
		}
		args[i] = strings.Join(words, "\n")
	}
	refused, err := c.Eval(ctx, allowed, nil, args...).Int64Slice()
	if redis.HasErrorPrefix(err, "NOPERM") &&
		redis.HasErrorPrefix(c.FCall(ctx, lua.Library().Name, nil).Err(), "NOPERM") {
		return []string{"fcall", "eval"}, nil
	}
	for _, i := range refused {
		list = append(list, commands[i-1])
	}
	return list, err
}

// userOf returns the name of a client's user; empty: the server's default user.
func userOf(c redis.UniversalClient) string {
	if one, ok := c.(*redis.Client); ok {
		return one.Options().Username
	}
	return ""
}

// optional are the commands that a process can do without: it uses others, or logs what it leaves out.
var optional = []string{"ping", "info", "scan", "fcall", "fcall_ro", "function|load", "function|list", "eval",
	"evalsha"}

// mayStart reports which commands of a role the user of a process lacks. It says nothing if the server cannot tell.
func mayStart(ctx context.Context, c redis.UniversalClient, k *stream.Keys, role string) Finding {
	commands := slices.DeleteFunc(needs(role, true), func(name string) bool { return slices.Contains(optional, name) })
	list, err := lackingItself(ctx, c, k, commands)
	if err != nil || len(list) == 0 {
		return Finding{}
	}
	return lacksRights(RedisRights, cmp.Or(userOf(c), "default"), role, list, k)
}

// lacksRights is a problem, except if a user lacks nothing but the right to load our library.
func lacksRights(check, user, role string, list []string, k *stream.Keys) Finding {
	if list = slices.DeleteFunc(list, func(name string) bool { return name == "function|load" }); len(list) == 0 {
		return found(check, mayNotRun(user, []string{"function|load"}, k)).as(Note,
			"until somebody loads our library, calls go by EVALSHA, which costs Redis more CPU",
			"streamcounter functions load (as a user such as operator; docs/security.md)")
	}
	return found(check, mayNotRun(user, list, k)).as(Problem, "`"+role+"` fails where it needs them",
		"ACL SETUSER "+user+" ~"+k.Prefix+":* +"+strings.Join(list, " +")+", or use `"+role+"` of deploy/users.acl")
}

// usersOf checks what the current user may do, and checks the users of deploy/users.acl.
func usersOf(ctx context.Context, k *stream.Keys, servers []*server) []Finding {
	c, loaded := answering(servers), loaded(servers)
	me, mayNotAsk := c.Do(ctx, "ACL", "WHOAMI").Text()
	if mayNotAsk != nil {
		me = cmp.Or(userOf(c), "default")
	}
	lacks := map[string][]string{} // role → commands
	for _, role := range roles {
		var err error
		switch {
		case mayNotAsk == nil:
			lacks[role], err = lacking(ctx, c, me, k, needs(role, loaded))
		case role != "producer": // which calls no script
			lacks[role], err = lackingItself(ctx, c, k, needs(role, loaded))
		}
		if err != nil && mayNotAsk != nil {
			return []Finding{notChecked(RedisRights, mayNotAsk, "ACL SETUSER <user> +acl|whoami +acl|dryrun")}
		}
		if err != nil {
			f := notChecked(RedisRights, err, "ACL SETUSER "+me+" +acl|dryrun")
			f.Found = "user " + me + ", " + f.Found
			return []Finding{f}
		}
	}
	all := []Finding{ownRights(ctx, c, me, lacks, k)}
	if mayNotAsk != nil {
		return all
	}
	all = append(all, worstOf(servers, func(s *server) Finding { return replay(ctx, s, k) })...)
	var known []string
	for _, role := range roles {
		list, err := lacking(ctx, c, role, k, needs(role, loaded))
		if errors.Is(err, errNoUser) {
			continue
		}
		if err != nil {
			return append(all, notChecked("redis.users", err, ""))
		}
		known = append(known, role)
		if len(list) > 0 {
			all = append(all, lacksRights("redis.users", role, role, list, k))
		}
	}
	if len(known) > 0 && all[len(all)-1].Check != "redis.users" {
		all = append(all, found("redis.users", "users "+strings.Join(known, ", ")+" may do what they need"))
	}
	return append(all, refusals(ctx, c, me, known)...)
}

// ownRights reports what the current user may do. A user that may not append may only look.
func ownRights(ctx context.Context, c redis.UniversalClient, me string, lacks map[string][]string,
	k *stream.Keys) Finding {
	f := Finding{Check: RedisRights, Severity: OK}
	if !slices.Contains(lacks["serve"], "eval") {
		delete(lacks, "producer") // which runs no scripts
	}
	var fits []string
	nearest := "serve"
	for _, role := range roles {
		list, asked := lacks[role]
		if asked && len(list) == 0 {
			fits = append(fits, role)
		}
		if asked && len(list) < len(lacks[nearest]) {
			nearest = role
		}
	}
	everything, _ := c.Do(ctx, "ACL", "DRYRUN", me, "FLUSHALL").Text()
	switch {
	case len(fits) == 0 && slices.Contains(lacks["producer"], "xadd"):
		f.Found = "user " + me + " may look, and no more"
	case len(fits) == 0:
		f = lacksRights(RedisRights, me, nearest, lacks[nearest], k)
	case everything == "OK":
		f.Found = "user " + me + " may do everything"
		f = f.as(Note,
			"a process of streamcounter needs a part of it, and a mistake or an intruder could flush the rest",
			"give each process a user of deploy/users.acl")
	default:
		f.Found = "user " + me + " may do what " + strings.Join(fits, ", ") + " need"
	}
	return f
}

// fixDefaultUser lets the default user replay everything. If it is off, it stays off: nobody can log in as this user.
const fixDefaultUser = "ACL SETUSER default ~* &* +@all (if it is off, it stays off), then ACL SAVE or CONFIG REWRITE"

// replay reports whether the default user may run what the append-only file has of our scripts. Redis replays the file
// as this user, and checks its rights at each EXEC (redis/redis#14541). It goes on without what it refuses.
func replay(ctx context.Context, s *server, k *stream.Keys) Finding {
	const check = "redis.default-user"
	if s.info["aof_enabled"] != "1" {
		return Finding{}
	}
	lacks, err := lacking(ctx, s.client, "default", k, replayed)
	if err != nil {
		return notChecked(check, err, "")
	}
	if len(lacks) == 0 {
		return found(check, "user default may run what the append-only file has")
	}
	return found(check, mayNotRun("default", lacks, k)).as(Problem,
		"Redis replays the append-only file as this user, unless redis/redis#14541 is fixed: "+
			"a restart loses what the scripts wrote (counts, decisions, blocks)", fixDefaultUser)
}

func mayNotRun(user string, commands []string, k *stream.Keys) string {
	return "user " + user + " may not run " + strings.Join(commands, ", ") + " on " + k.Prefix + ":*"
}

// replayingClient is the id in ACL LOG of the client that replays the append-only file: the greatest number.
const replayingClient = "id=18446744073709551615 "

// refusals reads whether a command of our users was refused. The user doctor of deploy/users.acl may not read this,
// because +acl|log would also allow it to clear the log. So refusals first asks the server whether the current user
// may: a refusal would itself appear in the log.
func refusals(ctx context.Context, c redis.UniversalClient, me string, users []string) (all []Finding) {
	const check = "redis.acl-log"
	if len(users) == 0 {
		return nil
	}
	if may, err := c.Do(ctx, "ACL", "DRYRUN", me, "ACL", "LOG", "128").Text(); err == nil && may != "OK" {
		return []Finding{found(check, "not checked: this user lacks the right, as it could then clear the log").as(Note,
			"", "ask as a user who may run ACL LOG, such as operator")}
	}
	// ACLLog of go-redis does not read the id of the client that replays the append-only file.
	log := redis.NewMapStringInterfaceSliceCmd(ctx, "ACL", "LOG", 128)
	if err := c.Process(ctx, log); err != nil {
		return []Finding{notChecked(check, err, "")}
	}
	var said, lost []string
	for _, e := range log.Val() {
		user, _ := e["username"].(string)
		client, _ := e["client-info"].(string)
		switch {
		case strings.HasPrefix(client, replayingClient):
			lost = append(lost, fmt.Sprint(e["object"]))
		case slices.Contains(users, user) && e["reason"] != "auth":
			said = append(said, fmt.Sprintf("%s was refused the %v %v", user, e["reason"], e["object"]))
		}
	}
	if len(lost) > 0 {
		all = append(all, found(check, "at its start Redis left out writes of the append-only file: "+few(lost)).as(
			Problem, "user default may not run them: what the scripts wrote since the last rewrite of the file is lost",
			fixDefaultUser+", then ACL LOG RESET; block again who was blocked"))
	}
	if len(said) > 0 {
		all = append(all, found(check, few(said)).as(Warning, "what was refused was not done",
			"give the rights (deploy/users.acl), then ACL LOG RESET"))
	}
	if len(all) == 0 {
		all = append(all, found(check, "no user was refused anything"))
	}
	return all
}

// few names each once, up to three of them.
func few(list []string) string {
	slices.Sort(list)
	list = slices.Compact(list)
	more := ""
	if len(list) > 3 {
		list, more = list[:3], fmt.Sprintf(", and %d more", len(list)-3)
	}
	return strings.Join(list, ", ") + more
}
