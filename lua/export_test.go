package lua

import "context"

// Call runs an operation with the arguments of a test.
func (s *Caller) Call(ctx context.Context, op string, keys []string, args []any) error {
	all := &Plan{}
	for _, name := range AlgorithmNames() {
		all.Meters = append(all.Meters, Meter{Algorithm: name})
	}
	return s.call(ctx, op, []*Plan{all}, keys, args).err
}
