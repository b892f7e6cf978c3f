package lua

import "context"

// Call runs an operation with arguments as a test has them.
func (s *Server) Call(ctx context.Context, op string, keys []string, args []any) error {
	_, err := s.call(ctx, op, AlgorithmNames(), keys, args)
	return err
}
