// Package activity reports what the processes of a prefix are doing now: how many checks and events each rule has,
// and which keys are the busiest. Each process records its own part in bounded memory (recorder.go), and publishes it
// every second as one small Redis key that expires. Gather reads the parts of all processes (gather.go). sketch.go
// says how far the units of a key may be off.
package activity
