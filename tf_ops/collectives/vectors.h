// Which vector instructions may be used on this machine.
#pragma once

namespace hvd {

// Levels of the x86-64 psABI; on other machines there is the baseline alone.
enum class Vectors { kBaseline, kV3, kV4 };

// The highest level whose instructions the CPU has and whose registers the
// operating system saves. `__builtin_cpu_supports` would not do: Zig's runtime
// library, with which the wheels are built, answers 0 to each question.
Vectors FindVectors();

}  // namespace hvd
