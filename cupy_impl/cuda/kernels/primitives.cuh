// What a kernel may use: the machine (threads, barriers, shuffles, tensor cores, memory) behind one set of names.
// device.cuh says it for NVRTC and nvcc, host.hpp for g++, where a block runs as fibers and every access is checked.
#pragma once

constexpr float LOG2E = 1.4426950408889634f;

#ifdef __CUDACC__
#include "device.cuh"
#else
#include "host.hpp"
#endif

// The storage format of a kernel's inputs and outputs; sums are float32.
#ifndef ELEMENT
#define ELEMENT half
#endif
using Element = ELEMENT;

// A truth that is known when a kernel is compiled.
template <bool x> struct Truth { enum { yes = x }; };

constexpr bool NARROW = sizeof(Element) == 2;  // through tensor cores
constexpr int VECTOR = 16 / sizeof(Element);   // elements of the widest access
constexpr int LANES = 32;
constexpr int ROWS = 16;  // of a warp's part of a block: those of one mma

DEVICE int lane() { return thread_index() % LANES; }
DEVICE int warp() { return thread_index() / LANES; }

// Where a thread's accumulators lie in the 16 x 8 result of an mma: acc[e] is at row(e), column(e).
DEVICE int row_of(int e) { return lane() / 4 + 8 * (e / 2); }
DEVICE int column_of(int e) { return 2 * (lane() % 4) + e % 2; }

DEVICE bool finite(float x) { return x < infinity() && x > -infinity(); }
