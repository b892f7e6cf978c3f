// Package measure owns what a comparison and a benchmark read of a Redis
// server: the CPU that its commands took and the memory that it holds. CPU per
// operation is steadier than wall time on a machine that others share.
//
// compare and bench use it.
package measure
