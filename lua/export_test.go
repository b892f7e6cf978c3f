package lua

import "context"

// Call runs an operation with the arguments of a test.
func (s *Server) Call(ctx context.Context, op string, keys []string, args []any) error {
	_, err := s.call(ctx, op, AlgorithmNames(), keys, args)
	return err
}
