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
// ReduceOp, the others are as in negotiation/request.h. An allreduce may also
// have `wire_format: i32`, the number of a WireFormat.
//
// Operands are the tensors of the call: one or, in a group, several (an
// alltoall has one). There are as many results. Result i of an allreduce or
// broadcast has the shape of operand i and may alias it: then say so in
// `output_operand_aliases`. Other results have as many dimensions as the
// operand, and no alias:
//   allgather      the operand's rows times the size of the process set;
//   reducescatter  this rank's share of the operand's rows; the first
//                  `rows mod size` ranks of the set have one more;
//   alltoall       the operand's shape: each rank gets an equal part of rows.
// All ranks must give an allgather or alltoall the same number of rows. Calls
// have side effects: `has_side_effect` must be set.
//
// On the CPU a call returns at once and ends when a future of XLA does. Chain
// the calls of a program, in the same order on all ranks: XLA lets a
// computation wait for a call whose memory it reuses, in an order that it
// chooses for each program. Ranks that compile different programs (another
// batch size is enough) could wait for each other. To chain calls, give each
// the attribute `has_token: i32` of value 1: it then has one more operand and
// one more result at the end, an aliased i32 scalar that is passed from call to
// call.
//
// TensorFlow 2.18 knows no futures: there the handlers named ...Blocking return
// when the call has ended. They always need the chain.
//
// On GPUs (HvdFfiGpu...) a call queues its work behind XLA's stream and makes
// the stream wait for it. The host waits until all ranks have come. To wait for
// many calls at once, and compute between them, give each the attribute
// `has_together: i32` of value 1 (allreduce, broadcast; results alias
// operands). Such a call only starts; HvdFfiGpuTogether ends it. The operands
// of that are the call's results, and nothing else reads these. Handlers for
// the CPU ignore the attribute.
//
// XLA calls handlers for GPUs one after the other, in the order of its
// schedule. The ranks' schedules may differ, and a rank that waits in an end
// has not started what comes later. So chain the starts with the token, too:
// then an end comes after its starts, and these after all that were traced
// before them. Of two waiting ranks, the one in the earlier end gets its
// answer. Ends need not be in the chain.
//
// If a rank is lost while the GPU works, the next call reports it: until then
// the program goes on, with wrong numbers. A line on stderr says so at once.
//
// If other code fails a program between a start and its end, the call is left
// behind: XLA may reuse its memory before the GPU has written the result there.
// The next failing call on the same thread, or the next call with the same
// memory, ends it; what is computed before that may be wrong.
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

// Returns its operands, which the results must alias; ignores attributes. As
// the only user of many calls' results it keeps XLA from reusing their memory
// before all have ended. Otherwise later computations, even if they need no
// result, would wait for the calls.
XLA_FFI_Error* HvdFfiTogether(XLA_FFI_CallFrame* frame);
// Ends the calls with `has_together` whose results are its operands; the last
// one may be a token (see `has_token`). Results must alias operands here, too.
XLA_FFI_Error* HvdFfiGpuTogether(XLA_FFI_CallFrame* frame);

// Registers the handlers with a framework as "hvd_allreduce",
// "hvd_reducescatter", "hvd_broadcast", "hvd_allgather", "hvd_alltoall" and
// "hvd_together". On the CPU they are those that block if `blocking` is not 0.
// If `has_gpu` is not 0, those for GPUs are registered under the same names.
//
// `api` is what the framework's `xla::ffi::GetXlaFfiApi()` returns. Returns
// null, or a message that is valid until the thread calls this again. (JAX has
// a function of its own for this and takes the symbols above.)
const char* HvdXlaRegister(const XLA_FFI_Api* api, int blocking, int has_gpu);

}  // extern "C"
