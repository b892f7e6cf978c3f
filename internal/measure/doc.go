// Package measure owns the figures that a comparison and a benchmark read from a Redis server: the CPU that its
// commands used and the memory that it holds. On a machine that others share, CPU per operation varies less than wall
// time.
//
// compare and bench use it.
package measure
