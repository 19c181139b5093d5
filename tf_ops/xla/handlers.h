// Collectives as custom calls of XLA, through its FFI: one library file for
// TensorFlow (2.18 and newer) and JAX.
//
// | symbol                  | attributes beside the common ones            |
// |-------------------------|----------------------------------------------|
// | HvdFfiAllreduce         | reduce_op: i32, prescale: f64, postscale: f64 |
// | HvdFfiReducescatter     | reduce_op: i32, prescale: f64, postscale: f64 |
// | HvdFfiBroadcast         | root_rank: i32                               |
// | HvdFfiAllgather         | none                                         |
// | HvdFfiAlltoall          | none                                         |
//
// Common attributes: name: string, not empty, which pairs the call across
// ranks; process_set_id: i32. All must be given. `reduce_op` is a number of
// ReduceOp, the rest is as in negotiation/request.h.
//
// Operands are the tensors of the call, one or, of a group, more (an alltoall
// has one); results are as many. Result i of an allreduce or broadcast has the
// shape of operand i and may alias it, so `output_operand_aliases` should say
// that it does. The others have as many dimensions, and no alias:
//   allgather      the operand's rows times the size of the process set;
//   reducescatter  this rank's share of the operand's rows, of which the first
//                  `rows mod size` ranks of the set have one more;
//   alltoall       the operand's shape: each rank gets an equal part of rows.
// All ranks must give as many rows to an allgather or alltoall. Calls have side
// effects: `has_side_effect` must be set.
//
// A call returns at once and ends when a future of XLA does. That alone does
// not make all orders of calls safe: XLA lets a computation wait for a call
// whose memory it is to use again, by an order that it has chosen for the
// program of this rank. Where ranks compile other programs (a batch of another
// size is enough), they could wait for one another. So the calls of a program
// should be a chain, in an order that is the same on all ranks: with the
// attribute `has_token: i32`, of value 1, a call has one more operand and one
// more result at the end, an i32 scalar, to be aliased, which is passed from
// call to call.
//
// TensorFlow 2.18 knows no futures: there the handlers named ...Blocking return
// when the call has ended. They need the chain in any case.
//
// On GPUs (HvdFfiGpu...) a call returns when it is queued behind XLA's stream,
// which waits for it; for that all ranks must have come, so that the host waits
// for them. Many calls wait together, and computations between them run
// meanwhile, where each has the attribute `has_together: i32`, of value 1:
// such a call (allreduce, broadcast; results alias operands) starts only, and
// HvdFfiGpuTogether ends it, whose operands are its results, which nothing else
// reads. Handlers for the CPU ignore the attribute.
//
// XLA calls them in the order of its schedule, one after the other. The ranks'
// schedules may differ, and a rank that waits in the end of one call has not
// started what comes later. So the starts must be a chain, again of the token:
// an end is behind its starts, and these are behind those that were traced
// before them, so that of two ranks that wait, the one in the earlier end has
// its answer. Ends need not be in the chain.
//
// An error of a rank that is lost while the GPU is at work comes with the next
// call: the program goes on, with wrong numbers, to there. A line on stderr
// says so at once.
//
// A program that fails between a start and its end in what is not ours leaves
// the call behind: XLA may use its memory for something else before the GPU has
// written the result into it. The call is ended by the next error of a call on
// the same thread, or by the next call with the same memory; what is computed
// before that may be wrong.
//
// An error has the text "hvd_keras.exceptions.<Name>Error: <message>", where
// <Name> is StatusCodeName().
#pragma once

#include "xla/ffi/api/c_api.h"

extern "C" {

XLA_FFI_Error* HvdFfiAllreduce(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiReducescatter(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiBroadcast(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiAllgather(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiAlltoall(XLA_FFI_CallFrame* frame);

XLA_FFI_Error* HvdFfiAllreduceBlocking(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiReducescatterBlocking(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiBroadcastBlocking(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiAllgatherBlocking(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiAlltoallBlocking(XLA_FFI_CallFrame* frame);

XLA_FFI_Error* HvdFfiGpuAllreduce(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiGpuReducescatter(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiGpuBroadcast(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiGpuAllgather(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HvdFfiGpuAlltoall(XLA_FFI_CallFrame* frame);

// Does nothing: results are their operands, which they must alias; attributes
// are ignored. As the one user of what many calls return, it keeps XLA from
// using their memory again before all have ended: computations that come later
// in the program, but need none of it, would wait for the calls else.
XLA_FFI_Error* HvdFfiTogether(XLA_FFI_CallFrame* frame);
// Ends the calls with `has_together` whose results its operands are, all but a
// token (see `has_token`); it must alias them, too.
XLA_FFI_Error* HvdFfiGpuTogether(XLA_FFI_CallFrame* frame);

// Makes the handlers known to a framework as "hvd_allreduce",
// "hvd_reducescatter", "hvd_broadcast", "hvd_allgather", "hvd_alltoall" and
// "hvd_together", for the CPU: those that block if `blocking` is not 0, else
// the others; and, if `has_gpu` is not 0, for GPUs under the same names.
//
// `api` is what `xla::ffi::GetXlaFfiApi()` of the framework returns. Returns
// null, or a message, valid until the calling thread calls again. (JAX has a
// function of its own for this and takes the symbols above.)
const char* HvdXlaRegister(const XLA_FFI_Api* api, int blocking, int has_gpu);

}  // extern "C"
