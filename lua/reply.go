package lua

import "fmt"

// reply is the reply of an operation, which is read from the first value to the last. A value that is missing, or of
// another type, is zero. end then returns an error.
type reply struct {
	op   string
	list []any
	at   int // the place of the next value
	err  error
}

// next returns the next value of a reply.
func next[T int64 | string](r *reply) (v T) {
	ok := false
	if r.at < len(r.list) {
		v, ok = r.list[r.at].(T)
	}
	if !ok && r.err == nil {
		r.err = fmt.Errorf("%s script: reply %v, expected %T at %d", r.op, r.list, v, r.at)
	}
	r.at++
	return v
}

func (r *reply) integer() int64 { return next[int64](r) }

func (r *reply) integers(n int) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = r.integer()
	}
	return list
}

// end returns the error of the reply. Call it after all values were read.
func (r *reply) end() error {
	if r.err == nil && r.at != len(r.list) {
		r.err = fmt.Errorf("%s script: reply %v, expected %d values", r.op, r.list, r.at)
	}
	return r.err
}

// state returns the state of a key of the plan: its time, and the result of window_states.
func (r *reply) state(p *Plan) (out CheckResult) {
	out.NowMs = r.integer()
	r.windows(p, &out)
	return out
}

// answer is like state, for an operation that decides: it also has the wait.
func (r *reply) answer(p *Plan) (out CheckResult) {
	out.NowMs, out.RetryMs = r.integer(), r.integer()
	r.windows(p, &out)
	return out
}

// answerWithShadows is like answer, and also has the waits for the shadow rules' windows.
func (r *reply) answerWithShadows(p *Plan) CheckResult {
	out := r.answer(p)
	out.ShadowMs = r.integers(p.shadows())
	return out
}

// windows reads what window_states (state.lua) writes for a key of the plan.
func (r *reply) windows(p *Plan, out *CheckResult) {
	out.Windows = make([]WindowState, p.windows())
	for i := range out.Windows {
		out.Windows[i] = WindowState{Used: r.integer(), NextFreeMs: r.integer(), EmptyMs: r.integer()}
	}
	out.InForce = r.integers(p.inForce())
}
