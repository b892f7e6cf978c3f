package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settingsOf looks at what servers are set to, as far as they tell.
func settingsOf(servers []*server) []Finding {
	var all []Finding
	for _, look := range []func(*server) (Finding, bool){
		version, policy, memory, persistence, nodeBytes, nodeEntries, lazyExpire, replicas, untold,
	} {
		all = append(all, tells(servers, look)...)
	}
	return all
}

// oldestRedis is the oldest Redis that will do; alerts.OldestServer is the oldest NATS.
const oldestRedis = "7.0"

func version(s *server) (Finding, bool) {
	const check = "redis.version"
	if s.infoErr != nil {
		return unseen(check, s.infoErr, "ACL SETUSER <user> +info"), true
	}
	have := s.info["redis_version"]
	if have == "" {
		return Finding{Check: check, Severity: Note,
				Found: "the server says no version: an embedded one, or something in between",
				Why: "the embedded Redis is for trying things out: it keeps nothing, and its clock and " +
					"trimming differ"},
			true
	}
	name := have
	if valkey := s.info["valkey_version"]; valkey != "" {
		name = "Valkey " + valkey + ", like Redis " + have
	}
	if older(have, oldestRedis) {
		return Finding{Check: check, Severity: Problem, Found: name + ", needed is " + oldestRedis + " or later",
			Why: "the scripts and the detection of lost events need commands of 7.0", Fix: "upgrade Redis"}, true
	}
	return Finding{Check: check, Severity: OK, Found: name}, true
}

// older compares the first two numbers of versions.
func older(have, than string) bool {
	var a, b [2]int
	_, _ = fmt.Sscanf(have, "%d.%d", &a[0], &a[1]) // what is no number is 0
	_, _ = fmt.Sscanf(than, "%d.%d", &b[0], &b[1])
	return slices.Compare(a[:], b[:]) < 0
}

func policy(s *server) (Finding, bool) {
	have := s.info["maxmemory_policy"]
	f := Finding{Check: "redis.maxmemory-policy", Severity: OK, Found: have}
	if have == "" || have == "noeviction" {
		return f, have != ""
	}
	f.Severity, f.Found = Problem, have+" with maxmemory "+size(s.bytes("maxmemory"))
	if s.bytes("maxmemory") == 0 {
		f.Severity, f.Found = Warning, have+", without effect until maxmemory is set"
	}
	f.Why = "Redis may evict counters and events when its memory is full: limits would not hold and events would " +
		"be lost"
	if strings.HasPrefix(have, "volatile-") {
		f.Why = "Redis may evict counters and events when its memory is full, as all of them have an expiry: " +
			"limits would not hold and events would be lost"
	}
	f.Fix = "CONFIG SET maxmemory-policy noeviction"
	return f, true
}

// bytes reads a number of INFO, 0 where there is none.
func (s *server) bytes(name string) int64 {
	n, _ := strconv.ParseInt(s.info[name], 10, 64)
	return n
}

func memory(s *server) (Finding, bool) {
	used, most := s.bytes("used_memory"), s.bytes("maxmemory")
	f := Finding{Check: "redis.memory", Severity: OK}
	if used == 0 {
		return f, false
	}
	if most == 0 {
		f.Severity, f.Found = Note, "no maxmemory; "+size(used)+" used of the machine's "+size(
			s.bytes("total_system_memory"))
		f.Why = "Redis would grow until the system ends it; with a bound, what is too much is refused and seen"
		f.Fix = "CONFIG SET maxmemory <bytes>, with noeviction"
		return f, true
	}
	pct := used * 100 / most
	f.Found = fmt.Sprintf("%s of %s used (%d %%)", size(used), size(most), pct)
	switch {
	case pct >= 90:
		f.Severity = Problem
	case pct >= 75:
		f.Severity = Warning
	default:
		return f, true
	}
	f.Why = "at the bound appends are refused, checks follow on_error, and no new decision goes out"
	f.Fix = "CONFIG SET maxmemory <more bytes>, or shorter windows and retention"
	return f, true
}

func persistence(s *server) (Finding, bool) {
	f := Finding{Check: "redis.persistence", Severity: OK}
	aof, told := s.info["aof_enabled"]
	if !told {
		return f, false
	}
	fsync, save := s.config["appendfsync"], s.config["save"]
	const turnOn = "CONFIG SET appendonly yes"
	switch {
	case aof == "1" && s.info["aof_last_write_status"] == "err", aof == "1" &&
		s.info["aof_last_bgrewrite_status"] == "err":
		f.Severity, f.Found = Problem, "the append-only file cannot be written"
		f.Why, f.Fix = "Redis refuses writes, or a restart loses what came since", "look at the disk and at Redis's log"
	case aof == "1" && fsync == "no":
		f.Severity, f.Found = Warning, "appendonly yes, appendfsync no"
		f.Why, f.Fix = "a crash of the machine costs what the system had not written: half a minute or more",
			"CONFIG SET appendfsync everysec"
	case aof == "1" && fsync == "":
		f.Found = "appendonly yes"
	case aof == "1":
		f.Found = "appendonly yes, appendfsync " + fsync
	case len(s.config) > 0 && save == "":
		f.Severity, f.Found = Warning, "nothing is kept: appendonly no, no snapshots"
		f.Why, f.Fix = "a restart of Redis forgets all events, counts and decisions", turnOn
	default:
		f.Severity, f.Found = Warning, "appendonly no"
		if save != "" {
			f.Found += ", snapshots alone (save " + save + ")"
		}
		f.Why, f.Fix = "a restart after a crash forgets all events and counts since the last snapshot", turnOn
	}
	return f, true
}

// number reads a setting.
func (s *server) number(name string) (int, bool) {
	n, err := strconv.Atoi(s.config[name])
	return n, err == nil
}

func nodeBytes(s *server) (Finding, bool) {
	n, ok := s.number("stream-node-max-bytes")
	f := Finding{Check: "redis.stream-node-max-bytes", Severity: OK, Found: strconv.Itoa(n)}
	if n == 0 || n > 1024 {
		f.Severity = Warning
		f.Why = "Redis takes more memory than it needs for keys with few events (about 4 KB for the first; 0.7 " +
			"KB at 512)"
		f.Fix = "CONFIG SET stream-node-max-bytes 512"
	}
	return f, ok
}

func nodeEntries(s *server) (Finding, bool) {
	n, ok := s.number("stream-node-max-entries")
	f := Finding{Check: "redis.stream-node-max-entries", Severity: OK, Found: strconv.Itoa(n)}
	switch {
	case n == 0 || n > 1000:
		f.Severity, f.Why = Note, "streams are trimmed by whole nodes: each may keep as many entries more than it needs"
	case n < 20:
		f.Severity, f.Why = Note,
			"a trim takes 100 nodes at most: a counter of a busy key may not be trimmed as fast as it grows"
	default:
		return f, ok
	}
	f.Fix = "CONFIG SET stream-node-max-entries 100"
	return f, ok
}

func lazyExpire(s *server) (Finding, bool) {
	have, ok := s.config["lazyfree-lazy-expire"]
	f := Finding{Check: "redis.lazyfree-lazy-expire", Severity: OK, Found: have}
	if have == "no" {
		f.Severity, f.Why = Note, "Redis pauses while it frees the counter of a busy key that expires"
		f.Fix = "CONFIG SET lazyfree-lazy-expire yes"
	}
	return f, ok
}

func replicas(s *server) (Finding, bool) {
	const check = "redis.replicas"
	have := int(s.bytes("connected_slaves"))
	least, known := s.number("min-replicas-to-write")
	f := Finding{Check: check, Severity: OK, Found: plural(have, "replica")}
	if known {
		f.Found += fmt.Sprintf(", min-replicas-to-write %d", least)
	}
	switch {
	case s.info["role"] == "":
		return f, false
	case s.info["role"] == "slave":
		return Finding{Check: check, Severity: Problem, Found: "this is a replica of " + s.info["master_host"],
			Why: "it refuses every write",
			Fix: "give the master to --redis, or redis+sentinel://"}, true
	case known && least > have:
		f.Severity, f.Why, f.Fix = Problem, "Redis refuses every write until as many replicas are connected",
			"connect the replicas, or CONFIG SET min-replicas-to-write 0"
	case known && have > 0 && least == 0:
		f.Severity, f.Why = Note,
			"a master that is cut off goes on taking events and checks that a failover then forgets"
		f.Fix = "CONFIG SET min-replicas-to-write 1"
	}
	return f, true
}

// untold says what was not looked at because CONFIG GET is refused.
func untold(s *server) (Finding, bool) {
	if s.configErr == nil {
		return Finding{}, false
	}
	f := unseen("redis.settings", s.configErr, "ACL SETUSER <user> +config|get")
	f.Why = "not checked: " + strings.Join(wanted, ", ")
	return f, true
}

// clocksOf compares each server's clock with this machine's, and servers' with each other.
func clocksOf(servers []*server, retention time.Duration) []Finding {
	const check = "redis.clock"
	var low, high time.Duration
	for i, s := range servers {
		if s.clockErr != nil {
			return []Finding{unseen(check, s.clockErr, "ACL SETUSER <user> +time")}
		}
		if i == 0 {
			low, high = s.ahead, s.ahead
		}
		low, high = min(low, s.ahead), max(high, s.ahead)
	}
	all := tells(servers, func(s *server) (Finding, bool) {
		off := max(s.ahead.Abs()-s.unsure, 0)
		f := Finding{Check: check, Severity: OK, Found: "within a second of this machine's"}
		if off < time.Second {
			return f, true
		}
		way := "behind"
		if s.ahead > 0 {
			way = "ahead of"
		}
		f.Severity, f.Found = Warning, fmt.Sprintf("%v %s this machine's", s.ahead.Abs().Round(time.Second), way)
		if off >= retention/2 {
			f.Severity = Problem
		}
		f.Why = "producers forget events older than the retention by their own clock: one that is ahead of Redis " +
			"forgets too early, and waits are by Redis's clock"
		f.Fix = "set both clocks by NTP (timedatectl set-ntp true)"
		return f, true
	})
	if apart := high - low; apart >= time.Second {
		all = append(all, Finding{Check: "redis.clocks", Severity: Warning,
			Found: "masters are " + apart.Round(time.Second).String() + " apart",
			Why:   "an event's time is its master's, so keys on different masters live in different times",
			Fix:   "set all clocks by NTP"})
	}
	return all
}
