package lua

import "fmt"

// Reply is the reply of an operation, which is read from the first value to the last. A value that is missing, or of
// another type, is zero. End then returns an error.
type Reply struct {
	op   string
	list []any
	at   int // the place of the next value
	err  error
}

// next returns the next value of a reply.
func next[T int64 | string](r *Reply) (v T) {
	ok := false
	if r.More() {
		v, ok = r.list[r.at].(T)
	}
	if !ok && r.err == nil {
		r.err = fmt.Errorf("%s script: reply %v, expected %T at %d", r.op, r.list, v, r.at)
	}
	r.at++
	return v
}

// More reports whether there are more values.
func (r *Reply) More() bool { return r.at < len(r.list) }

// Integer returns the next value, an integer.
func (r *Reply) Integer() int64 { return next[int64](r) }

// Text returns the next value, a text.
func (r *Reply) Text() string { return next[string](r) }

// Integers returns the next n values, which are integers.
func (r *Reply) Integers(n int) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = r.Integer()
	}
	return list
}

// Flags returns the next n values, each of which is 1 for true.
func (r *Reply) Flags(n int) []bool {
	list := make([]bool, n)
	for i := range list {
		list[i] = r.Integer() == 1
	}
	return list
}

// Err returns the error of the call, or of what was read.
func (r *Reply) Err() error { return r.err }

// End returns the error of the call or of its reply. Call it after all values were read.
func (r *Reply) End() error {
	if r.err == nil && r.at != len(r.list) {
		r.err = fmt.Errorf("%s script: reply %v, expected %d values", r.op, r.list, r.at)
	}
	return r.err
}

// WindowState is the state of a key in one window. The times are ms since 1970, 0 if nothing is used.
type WindowState struct {
	Used       int64
	NextFreeMs int64 // when the first of the used units is free again
	EmptyMs    int64 // when all of them are free again
}

// KeyState is the state of a key under a plan.
type KeyState struct {
	NowMs   int64
	RetryMs int64 // 0: the cost is admitted; -1: it can never be
	Windows []WindowState
	InForce []int64 // the result of hook in_force for the key (plan.lua)
	// ShadowMs has, for each window that does not decide, what RetryMs would have been.
	ShadowMs []int64
}

// State returns the state of a key of the plan, without waits. If p is nil, the reply has no state of the key, and
// State reads nothing.
func (r *Reply) State(p *Plan) (out KeyState) {
	if p != nil {
		out.NowMs = r.Integer()
		r.windows(p, &out)
	}
	return out
}

// Answer is like State, for an operation that decides: the state has RetryMs.
func (r *Reply) Answer(p *Plan) (out KeyState) {
	if p != nil {
		out.NowMs, out.RetryMs = r.Integer(), r.Integer()
		r.windows(p, &out)
	}
	return out
}

// AnswerWithShadows is like Answer, and the state also has ShadowMs.
func (r *Reply) AnswerWithShadows(p *Plan) KeyState {
	out := r.Answer(p)
	if p != nil {
		_, shadows := p.windows()
		out.ShadowMs = r.Integers(shadows)
	}
	return out
}

// windows reads what window_states (state.lua) writes for a key of the plan.
func (r *Reply) windows(p *Plan, out *KeyState) {
	n, _ := p.windows()
	out.Windows = make([]WindowState, n)
	for i := range out.Windows {
		out.Windows[i] = WindowState{Used: r.Integer(), NextFreeMs: r.Integer(), EmptyMs: r.Integer()}
	}
	out.InForce = r.Integers(p.inForce())
}
