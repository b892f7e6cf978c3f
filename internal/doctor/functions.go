package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

func (s *server) readFunctions(ctx context.Context) {
	ours := redis.FunctionListQuery{LibraryNamePattern: lua.LibraryPrefix + "*"}
	list, err := s.client.FunctionList(ctx, ours).Result()
	s.functionsErr = err
	for _, l := range list {
		s.libraries = append(s.libraries, l.Name)
	}
}

func loaded(servers []*server) bool {
	return !slices.ContainsFunc(servers, func(s *server) bool {
		return !slices.Contains(s.libraries, lua.Library().Name)
	})
}

// functions reports how a server is called, and which libraries of other versions it holds.
func functions(s *server) Finding {
	const check = "redis.functions"
	if redis.HasErrorPrefix(s.functionsErr, unknownCommand) {
		return found(check, "the server knows no functions: it is called by EVALSHA").as(Note,
			"a function costs Redis less CPU than a script", "")
	}
	if s.functionsErr != nil {
		return notChecked(check, s.functionsErr, "ACL SETUSER <user> +function|list")
	}
	f := found(check, "not loaded yet: the first call loads it, if its user may")
	var others []string
	for _, name := range s.libraries {
		if name == lua.Library().Name {
			f.Found = name
		} else {
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		f.Found += "; of other versions: " + strings.Join(others, ", ")
		f = f.as(Note,
			"each keeps some memory; a process of that version loads its own again, so a deletion loses nothing",
			"streamcounter doctor --prune (as a user such as operator), once no process of that version runs")
	}
	return f
}

// Prune deletes libraries of ours on all masters, except the one of this version and those that running processes of
// the prefix use. It returns the deleted libraries, each once.
func Prune(ctx context.Context, c redis.UniversalClient, keys *stream.Keys) (deleted []string, err error) {
	servers, err := serversOf(ctx, c)
	if err != nil {
		return nil, err
	}
	now, err := c.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("reading the clock: %w", err)
	}
	used, err := c.ZRangeByScore(ctx, keys.Libraries(), &redis.ZRangeBy{
		Min: strconv.FormatInt(now.UnixMilli(), 10), Max: "+inf"}).Result()
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		err = fmt.Errorf("%w; RENAME %s away, or delete it", err, keys.Libraries())
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", keys.Libraries(), err)
	}
	for _, s := range servers {
		s.readFunctions(ctx)
		if redis.HasErrorPrefix(s.functionsErr, unknownCommand) {
			continue // the server has no functions
		}
		if s.functionsErr != nil {
			return deleted, fmt.Errorf("listing the libraries: %w", s.functionsErr)
		}
		for _, name := range s.libraries {
			if name == lua.Library().Name || slices.Contains(used, name) {
				continue
			}
			if err := s.client.FunctionDelete(ctx, name).Err(); err != nil {
				return deleted, fmt.Errorf("deleting the library %s: %w", name, err)
			}
			if !slices.Contains(deleted, name) {
				deleted = append(deleted, name)
			}
		}
	}
	return deleted, nil
}
