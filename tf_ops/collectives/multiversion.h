// What compilers spell differently for functions that are compiled once for
// each level of vectors.h. Functions between BEGIN and END may use the named
// instructions. The steps of an INDEPENDENT loop may run at once.
#pragma once

#if defined(__x86_64__)
#define HVD_MULTIVERSION 1
#endif

#define HVD_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define HVD_BEGIN_TARGET(names)                                   \
  HVD_PRAGMA(clang attribute push(__attribute__((target(names))), \
                                  apply_to = function))
#define HVD_END_TARGET HVD_PRAGMA(clang attribute pop)
#define HVD_INDEPENDENT HVD_PRAGMA(clang loop vectorize(assume_safety))
#define HVD_WIDE ""  // by itself
#else
#define HVD_BEGIN_TARGET(names) \
  HVD_PRAGMA(GCC push_options) HVD_PRAGMA(GCC target(names))
#define HVD_END_TARGET HVD_PRAGMA(GCC pop_options)
#define HVD_INDEPENDENT HVD_PRAGMA(GCC ivdep)
#define HVD_WIDE ",prefer-vector-width=512"
#endif
// The levels of the psABI. Zig's compiler heeds no `arch=x86-64-v3` here.
#define HVD_V3 "avx2,bmi,bmi2,f16c,fma,lzcnt,movbe"
#define HVD_V4 HVD_V3 ",avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
