// Made by tools/make_scale_ptx.py from scale_kernel.h: do not edit.
#pragma once

namespace hvd {

inline constexpr char kScalePtx[] = R"(
.version 8.0
.target sm_60
.address_size 64
.global .align 4 .u32 _ZN9hvd_scale5SmallILi4ELi3ELb0EE5kBiasE = 7;
.global .align 4 .u32 _ZN9hvd_scale5SmallILi4ELi3ELb0EE10kMagnitudeE = 127;
.global .align 4 .u32 _ZN9hvd_scale5SmallILi4ELi3ELb0EE9kInfinityE = 120;
.global .align 4 .u32 _ZN9hvd_scale5SmallILi4ELi3ELb0EE8kLargestE = 126;
.global .align 4 .u32 _ZN9hvd_scale5SmallILi5ELi2ELb1EE5kBiasE = 15;
.global .align 4 .u32 _ZN9hvd_scale5SmallILi5ELi2ELb1EE10kMagnitudeE = 127;
.global .align 4 .u32 _ZN9hvd_scale5SmallILi5ELi2ELb1EE9kInfinityE = 124;
.global .align 4 .u32 _ZN9hvd_scale5SmallILi5ELi2ELb1EE8kLargestE = 123;
.visible .entry hvd_scale_float32(
	.param .u64 hvd_scale_float32_param_0,
	.param .u64 hvd_scale_float32_param_1,
	.param .f32 hvd_scale_float32_param_2
)
{
	.reg .pred 	%p<6>;
	.reg .f32 	%f<16>;
	.reg .b32 	%r<5>;
	.reg .b64 	%rd<23>;
	ld.param.u64 	%rd11, [hvd_scale_float32_param_0];
	ld.param.u64 	%rd10, [hvd_scale_float32_param_1];
	ld.param.f32 	%f1, [hvd_scale_float32_param_2];
	cvta.to.global.u64 	%rd1, %rd11;
	mov.u32 	%r1, %ctaid.x;
	mov.u32 	%r2, %ntid.x;
	mul.wide.u32 	%rd12, %r1, %r2;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd13, %r3;
	add.s64 	%rd2, %rd12, %rd13;
	mov.u32 	%r4, %nctaid.x;
	mul.wide.u32 	%rd3, %r4, %r2;
	and.b64  	%rd14, %rd11, 15;
	setp.eq.s64 	%p1, %rd14, 0;
	shr.u64 	%rd15, %rd10, 2;
	selp.b64 	%rd4, %rd15, 0, %p1;
	setp.ge.u64 	%p2, %rd2, %rd4;
	@%p2 bra 	$L__BB0_3;
	mov.u64 	%rd21, %rd2;
$L__BB0_2:
	shl.b64 	%rd16, %rd21, 4;
	add.s64 	%rd17, %rd1, %rd16;
	ld.global.v4.f32 	{%f2, %f3, %f4, %f5}, [%rd17];
	mul.f32 	%f10, %f5, %f1;
	mul.f32 	%f11, %f4, %f1;
	mul.f32 	%f12, %f3, %f1;
	mul.f32 	%f13, %f2, %f1;
	st.global.v4.f32 	[%rd17], {%f13, %f12, %f11, %f10};
	add.s64 	%rd21, %rd21, %rd3;
	setp.lt.u64 	%p3, %rd21, %rd4;
	@%p3 bra 	$L__BB0_2;
$L__BB0_3:
	shl.b64 	%rd18, %rd4, 2;
	add.s64 	%rd22, %rd18, %rd2;
	setp.ge.u64 	%p4, %rd22, %rd10;
	@%p4 bra 	$L__BB0_5;
$L__BB0_4:
	shl.b64 	%rd19, %rd22, 2;
	add.s64 	%rd20, %rd1, %rd19;
	ld.global.f32 	%f14, [%rd20];
	mul.f32 	%f15, %f14, %f1;
	st.global.f32 	[%rd20], %f15;
	add.s64 	%rd22, %rd22, %rd3;
	setp.lt.u64 	%p5, %rd22, %rd10;
	@%p5 bra 	$L__BB0_4;
$L__BB0_5:
	ret;
}
.visible .entry hvd_scale_float64(
	.param .u64 hvd_scale_float64_param_0,
	.param .u64 hvd_scale_float64_param_1,
	.param .f64 hvd_scale_float64_param_2
)
{
	.reg .pred 	%p<6>;
	.reg .b32 	%r<5>;
	.reg .f64 	%fd<10>;
	.reg .b64 	%rd<23>;
	ld.param.u64 	%rd11, [hvd_scale_float64_param_0];
	ld.param.u64 	%rd10, [hvd_scale_float64_param_1];
	ld.param.f64 	%fd1, [hvd_scale_float64_param_2];
	cvta.to.global.u64 	%rd1, %rd11;
	mov.u32 	%r1, %ctaid.x;
	mov.u32 	%r2, %ntid.x;
	mul.wide.u32 	%rd12, %r1, %r2;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd13, %r3;
	add.s64 	%rd2, %rd12, %rd13;
	mov.u32 	%r4, %nctaid.x;
	mul.wide.u32 	%rd3, %r4, %r2;
	and.b64  	%rd14, %rd11, 15;
	setp.eq.s64 	%p1, %rd14, 0;
	shr.u64 	%rd15, %rd10, 1;
	selp.b64 	%rd4, %rd15, 0, %p1;
	setp.ge.u64 	%p2, %rd2, %rd4;
	@%p2 bra 	$L__BB1_3;
	mov.u64 	%rd21, %rd2;
$L__BB1_2:
	shl.b64 	%rd16, %rd21, 4;
	add.s64 	%rd17, %rd1, %rd16;
	ld.global.v2.f64 	{%fd2, %fd3}, [%rd17];
	mul.f64 	%fd6, %fd3, %fd1;
	mul.f64 	%fd7, %fd2, %fd1;
	st.global.v2.f64 	[%rd17], {%fd7, %fd6};
	add.s64 	%rd21, %rd21, %rd3;
	setp.lt.u64 	%p3, %rd21, %rd4;
	@%p3 bra 	$L__BB1_2;
$L__BB1_3:
	shl.b64 	%rd18, %rd4, 1;
	add.s64 	%rd22, %rd18, %rd2;
	setp.ge.u64 	%p4, %rd22, %rd10;
	@%p4 bra 	$L__BB1_5;
$L__BB1_4:
	shl.b64 	%rd19, %rd22, 3;
	add.s64 	%rd20, %rd1, %rd19;
	ld.global.f64 	%fd8, [%rd20];
	mul.f64 	%fd9, %fd8, %fd1;
	st.global.f64 	[%rd20], %fd9;
	add.s64 	%rd22, %rd22, %rd3;
	setp.lt.u64 	%p5, %rd22, %rd10;
	@%p5 bra 	$L__BB1_4;
$L__BB1_5:
	ret;
}
.visible .entry hvd_scale_bfloat16(
	.param .u64 hvd_scale_bfloat16_param_0,
	.param .u64 hvd_scale_bfloat16_param_1,
	.param .f32 hvd_scale_bfloat16_param_2
)
{
	.reg .pred 	%p<15>;
	.reg .b16 	%rs<9>;
	.reg .f32 	%f<20>;
	.reg .b32 	%r<116>;
	.reg .b64 	%rd<23>;
	ld.param.u64 	%rd11, [hvd_scale_bfloat16_param_0];
	ld.param.u64 	%rd10, [hvd_scale_bfloat16_param_1];
	ld.param.f32 	%f1, [hvd_scale_bfloat16_param_2];
	cvta.to.global.u64 	%rd1, %rd11;
	mov.u32 	%r1, %ctaid.x;
	mov.u32 	%r2, %ntid.x;
	mul.wide.u32 	%rd12, %r1, %r2;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd13, %r3;
	add.s64 	%rd2, %rd12, %rd13;
	mov.u32 	%r4, %nctaid.x;
	mul.wide.u32 	%rd3, %r4, %r2;
	and.b64  	%rd14, %rd11, 15;
	setp.eq.s64 	%p1, %rd14, 0;
	shr.u64 	%rd15, %rd10, 3;
	selp.b64 	%rd4, %rd15, 0, %p1;
	setp.ge.u64 	%p2, %rd2, %rd4;
	@%p2 bra 	$L__BB2_3;
	mov.u64 	%rd21, %rd2;
$L__BB2_2:
	shl.b64 	%rd16, %rd21, 4;
	add.s64 	%rd17, %rd1, %rd16;
	ld.global.v4.u32 	{%r5, %r6, %r7, %r8}, [%rd17];
	mov.b32 	{%rs1, %rs2}, %r5;
	mov.b32 	{%rs3, %rs4}, %r6;
	mov.b32 	{%rs5, %rs6}, %r7;
	mov.b32 	{%rs7, %rs8}, %r8;
	cvt.u32.u16 	%r13, %rs1;
	shl.b32 	%r14, %r13, 16;
	mov.b32 	%f2, %r14;
	mul.f32 	%f3, %f2, %f1;
	mov.b32 	%r15, %f3;
	and.b32  	%r16, %r15, 2147483647;
	setp.gt.u32 	%p3, %r16, 2139095040;
	shr.u32 	%r17, %r15, 16;
	or.b32  	%r18, %r17, 64;
	bfe.u32 	%r19, %r15, 16, 1;
	add.s32 	%r20, %r15, %r19;
	add.s32 	%r21, %r20, 32767;
	shr.u32 	%r22, %r21, 16;
	selp.b32 	%r23, %r18, %r22, %p3;
	cvt.u32.u16 	%r24, %rs2;
	shl.b32 	%r25, %r24, 16;
	mov.b32 	%f4, %r25;
	mul.f32 	%f5, %f4, %f1;
	mov.b32 	%r26, %f5;
	and.b32  	%r27, %r26, 2147483647;
	setp.gt.u32 	%p4, %r27, 2139095040;
	shr.u32 	%r28, %r26, 16;
	or.b32  	%r29, %r28, 64;
	bfe.u32 	%r30, %r26, 16, 1;
	add.s32 	%r31, %r26, %r30;
	add.s32 	%r32, %r31, 32767;
	shr.u32 	%r33, %r32, 16;
	selp.b32 	%r34, %r29, %r33, %p4;
	cvt.u32.u16 	%r35, %rs3;
	shl.b32 	%r36, %r35, 16;
	mov.b32 	%f6, %r36;
	mul.f32 	%f7, %f6, %f1;
	mov.b32 	%r37, %f7;
	and.b32  	%r38, %r37, 2147483647;
	setp.gt.u32 	%p5, %r38, 2139095040;
	shr.u32 	%r39, %r37, 16;
	or.b32  	%r40, %r39, 64;
	bfe.u32 	%r41, %r37, 16, 1;
	add.s32 	%r42, %r37, %r41;
	add.s32 	%r43, %r42, 32767;
	shr.u32 	%r44, %r43, 16;
	selp.b32 	%r45, %r40, %r44, %p5;
	cvt.u32.u16 	%r46, %rs4;
	shl.b32 	%r47, %r46, 16;
	mov.b32 	%f8, %r47;
	mul.f32 	%f9, %f8, %f1;
	mov.b32 	%r48, %f9;
	and.b32  	%r49, %r48, 2147483647;
	setp.gt.u32 	%p6, %r49, 2139095040;
	shr.u32 	%r50, %r48, 16;
	or.b32  	%r51, %r50, 64;
	bfe.u32 	%r52, %r48, 16, 1;
	add.s32 	%r53, %r48, %r52;
	add.s32 	%r54, %r53, 32767;
	shr.u32 	%r55, %r54, 16;
	selp.b32 	%r56, %r51, %r55, %p6;
	cvt.u32.u16 	%r57, %rs5;
	shl.b32 	%r58, %r57, 16;
	mov.b32 	%f10, %r58;
	mul.f32 	%f11, %f10, %f1;
	mov.b32 	%r59, %f11;
	and.b32  	%r60, %r59, 2147483647;
	setp.gt.u32 	%p7, %r60, 2139095040;
	shr.u32 	%r61, %r59, 16;
	or.b32  	%r62, %r61, 64;
	bfe.u32 	%r63, %r59, 16, 1;
	add.s32 	%r64, %r59, %r63;
	add.s32 	%r65, %r64, 32767;
	shr.u32 	%r66, %r65, 16;
	selp.b32 	%r67, %r62, %r66, %p7;
	cvt.u32.u16 	%r68, %rs6;
	shl.b32 	%r69, %r68, 16;
	mov.b32 	%f12, %r69;
	mul.f32 	%f13, %f12, %f1;
	mov.b32 	%r70, %f13;
	and.b32  	%r71, %r70, 2147483647;
	setp.gt.u32 	%p8, %r71, 2139095040;
	shr.u32 	%r72, %r70, 16;
	or.b32  	%r73, %r72, 64;
	bfe.u32 	%r74, %r70, 16, 1;
	add.s32 	%r75, %r70, %r74;
	add.s32 	%r76, %r75, 32767;
	shr.u32 	%r77, %r76, 16;
	selp.b32 	%r78, %r73, %r77, %p8;
	cvt.u32.u16 	%r79, %rs7;
	shl.b32 	%r80, %r79, 16;
	mov.b32 	%f14, %r80;
	mul.f32 	%f15, %f14, %f1;
	mov.b32 	%r81, %f15;
	and.b32  	%r82, %r81, 2147483647;
	setp.gt.u32 	%p9, %r82, 2139095040;
	shr.u32 	%r83, %r81, 16;
	or.b32  	%r84, %r83, 64;
	bfe.u32 	%r85, %r81, 16, 1;
	add.s32 	%r86, %r81, %r85;
	add.s32 	%r87, %r86, 32767;
	shr.u32 	%r88, %r87, 16;
	selp.b32 	%r89, %r84, %r88, %p9;
	cvt.u32.u16 	%r90, %rs8;
	shl.b32 	%r91, %r90, 16;
	mov.b32 	%f16, %r91;
	mul.f32 	%f17, %f16, %f1;
	mov.b32 	%r92, %f17;
	and.b32  	%r93, %r92, 2147483647;
	setp.gt.u32 	%p10, %r93, 2139095040;
	shr.u32 	%r94, %r92, 16;
	or.b32  	%r95, %r94, 64;
	bfe.u32 	%r96, %r92, 16, 1;
	add.s32 	%r97, %r92, %r96;
	add.s32 	%r98, %r97, 32767;
	shr.u32 	%r99, %r98, 16;
	selp.b32 	%r100, %r95, %r99, %p10;
	prmt.b32 	%r101, %r100, %r89, 4180;
	prmt.b32 	%r102, %r78, %r67, 4180;
	prmt.b32 	%r103, %r56, %r45, 4180;
	prmt.b32 	%r104, %r34, %r23, 4180;
	st.global.v4.u32 	[%rd17], {%r104, %r103, %r102, %r101};
	add.s64 	%rd21, %rd21, %rd3;
	setp.lt.u64 	%p11, %rd21, %rd4;
	@%p11 bra 	$L__BB2_2;
$L__BB2_3:
	shl.b64 	%rd18, %rd4, 3;
	add.s64 	%rd22, %rd18, %rd2;
	setp.ge.u64 	%p12, %rd22, %rd10;
	@%p12 bra 	$L__BB2_5;
$L__BB2_4:
	shl.b64 	%rd19, %rd22, 1;
	add.s64 	%rd20, %rd1, %rd19;
	ld.global.u16 	%r105, [%rd20];
	shl.b32 	%r106, %r105, 16;
	mov.b32 	%f18, %r106;
	mul.f32 	%f19, %f18, %f1;
	mov.b32 	%r107, %f19;
	and.b32  	%r108, %r107, 2147483647;
	setp.gt.u32 	%p13, %r108, 2139095040;
	shr.u32 	%r109, %r107, 16;
	or.b32  	%r110, %r109, 64;
	bfe.u32 	%r111, %r107, 16, 1;
	add.s32 	%r112, %r107, %r111;
	add.s32 	%r113, %r112, 32767;
	shr.u32 	%r114, %r113, 16;
	selp.b32 	%r115, %r110, %r114, %p13;
	st.global.u16 	[%rd20], %r115;
	add.s64 	%rd22, %rd22, %rd3;
	setp.lt.u64 	%p14, %rd22, %rd10;
	@%p14 bra 	$L__BB2_4;
$L__BB2_5:
	ret;
}
.visible .entry hvd_scale_float16(
	.param .u64 hvd_scale_float16_param_0,
	.param .u64 hvd_scale_float16_param_1,
	.param .f32 hvd_scale_float16_param_2
)
{
	.reg .pred 	%p<6>;
	.reg .b16 	%rs<19>;
	.reg .f32 	%f<20>;
	.reg .b32 	%r<17>;
	.reg .b64 	%rd<23>;
	ld.param.u64 	%rd11, [hvd_scale_float16_param_0];
	ld.param.u64 	%rd10, [hvd_scale_float16_param_1];
	ld.param.f32 	%f1, [hvd_scale_float16_param_2];
	cvta.to.global.u64 	%rd1, %rd11;
	mov.u32 	%r1, %ctaid.x;
	mov.u32 	%r2, %ntid.x;
	mul.wide.u32 	%rd12, %r1, %r2;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd13, %r3;
	add.s64 	%rd2, %rd12, %rd13;
	mov.u32 	%r4, %nctaid.x;
	mul.wide.u32 	%rd3, %r4, %r2;
	and.b64  	%rd14, %rd11, 15;
	setp.eq.s64 	%p1, %rd14, 0;
	shr.u64 	%rd15, %rd10, 3;
	selp.b64 	%rd4, %rd15, 0, %p1;
	setp.ge.u64 	%p2, %rd2, %rd4;
	@%p2 bra 	$L__BB3_3;
	mov.u64 	%rd21, %rd2;
$L__BB3_2:
	shl.b64 	%rd16, %rd21, 4;
	add.s64 	%rd17, %rd1, %rd16;
	ld.global.v4.u32 	{%r5, %r6, %r7, %r8}, [%rd17];
	mov.b32 	{%rs1, %rs3}, %r5;
	mov.b32 	{%rs5, %rs7}, %r6;
	mov.b32 	{%rs9, %rs11}, %r7;
	mov.b32 	{%rs13, %rs15}, %r8;
	cvt.f32.f16 %f2, %rs1;
	mul.f32 	%f3, %f2, %f1;
	cvt.f32.f16 %f4, %rs3;
	mul.f32 	%f5, %f4, %f1;
	cvt.f32.f16 %f6, %rs5;
	mul.f32 	%f7, %f6, %f1;
	cvt.f32.f16 %f8, %rs7;
	mul.f32 	%f9, %f8, %f1;
	cvt.f32.f16 %f10, %rs9;
	mul.f32 	%f11, %f10, %f1;
	cvt.f32.f16 %f12, %rs11;
	mul.f32 	%f13, %f12, %f1;
	cvt.f32.f16 %f14, %rs13;
	mul.f32 	%f15, %f14, %f1;
	cvt.f32.f16 %f16, %rs15;
	mul.f32 	%f17, %f16, %f1;
	cvt.rn.f16.f32 %rs4, %f5;
	cvt.rn.f16.f32 %rs2, %f3;
	cvt.rn.f16.f32 %rs8, %f9;
	cvt.rn.f16.f32 %rs6, %f7;
	cvt.rn.f16.f32 %rs12, %f13;
	cvt.rn.f16.f32 %rs10, %f11;
	cvt.rn.f16.f32 %rs16, %f17;
	cvt.rn.f16.f32 %rs14, %f15;
	mov.b32 	%r13, {%rs14, %rs16};
	mov.b32 	%r14, {%rs10, %rs12};
	mov.b32 	%r15, {%rs6, %rs8};
	mov.b32 	%r16, {%rs2, %rs4};
	st.global.v4.u32 	[%rd17], {%r16, %r15, %r14, %r13};
	add.s64 	%rd21, %rd21, %rd3;
	setp.lt.u64 	%p3, %rd21, %rd4;
	@%p3 bra 	$L__BB3_2;
$L__BB3_3:
	shl.b64 	%rd18, %rd4, 3;
	add.s64 	%rd22, %rd18, %rd2;
	setp.ge.u64 	%p4, %rd22, %rd10;
	@%p4 bra 	$L__BB3_5;
$L__BB3_4:
	shl.b64 	%rd19, %rd22, 1;
	add.s64 	%rd20, %rd1, %rd19;
	ld.global.u16 	%rs17, [%rd20];
	cvt.f32.f16 %f18, %rs17;
	mul.f32 	%f19, %f18, %f1;
	cvt.rn.f16.f32 %rs18, %f19;
	st.global.u16 	[%rd20], %rs18;
	add.s64 	%rd22, %rd22, %rd3;
	setp.lt.u64 	%p5, %rd22, %rd10;
	@%p5 bra 	$L__BB3_4;
$L__BB3_5:
	ret;
}
.visible .entry hvd_scale_float8_e4m3fn(
	.param .u64 hvd_scale_float8_e4m3fn_param_0,
	.param .u64 hvd_scale_float8_e4m3fn_param_1,
	.param .f32 hvd_scale_float8_e4m3fn_param_2
)
{
	.reg .pred 	%p<23>;
	.reg .b16 	%rs<13>;
	.reg .f32 	%f<47>;
	.reg .b32 	%r<136>;
	.reg .b64 	%rd<33>;
	ld.param.u64 	%rd11, [hvd_scale_float8_e4m3fn_param_0];
	ld.param.u64 	%rd12, [hvd_scale_float8_e4m3fn_param_1];
	ld.param.f32 	%f6, [hvd_scale_float8_e4m3fn_param_2];
	mov.u32 	%r31, %ctaid.x;
	mov.u32 	%r32, %ntid.x;
	mul.wide.u32 	%rd13, %r31, %r32;
	mov.u32 	%r33, %tid.x;
	cvt.u64.u32 	%rd14, %r33;
	add.s64 	%rd31, %rd13, %rd14;
	and.b64  	%rd15, %rd11, 3;
	setp.eq.s64 	%p1, %rd15, 0;
	shr.u64 	%rd16, %rd12, 2;
	selp.b64 	%rd17, %rd16, 0, %p1;
	setp.ge.u64 	%p2, %rd31, %rd17;
	@%p2 bra 	$L__BB4_23;
	cvta.to.global.u64 	%rd18, %rd11;
$L__BB4_2:
	shl.b64 	%rd19, %rd31, 2;
	add.s64 	%rd3, %rd18, %rd19;
	ld.global.v4.u8 	{%rs5, %rs6, %rs7, %rs8}, [%rd3];
	cvt.u32.u16 	%r34, %rs5;
	and.b32  	%r35, %r34, 127;
	shl.b32 	%r36, %r34, 24;
	and.b32  	%r37, %r36, -2147483648;
	setp.eq.s32 	%p3, %r35, 127;
	shl.b32 	%r38, %r34, 20;
	and.b32  	%r39, %r38, 133169152;
	mov.b32 	%f7, %r39;
	mul.f32 	%f8, %f7, 0f7B800000;
	mov.b32 	%r40, %f8;
	selp.b32 	%r41, 2143289344, %r40, %p3;
	or.b32  	%r42, %r41, %r37;
	mov.b32 	%f9, %r42;
	mul.f32 	%f10, %f9, %f6;
	mov.b32 	%r43, %f10;
	shr.u32 	%r44, %r43, 24;
	and.b32  	%r1, %r44, 128;
	and.b32  	%r2, %r43, 2147483647;
	mov.b32 	%f1, %r2;
	setp.nan.f32 	%p4, %f1, %f1;
	@%p4 bra 	$L__BB4_6;
	setp.ltu.f32 	%p5, %f1, 0f43E80000;
	@%p5 bra 	$L__BB4_5;
	bra.uni 	$L__BB4_4;
$L__BB4_5:
	shr.u32 	%r45, %r2, 23;
	add.s32 	%r46, %r45, -127;
	max.s32 	%r47, %r46, -6;
	shl.b32 	%r48, %r47, 23;
	add.s32 	%r49, %r48, 1233125376;
	mov.b32 	%f11, %r49;
	add.f32 	%f12, %f1, %f11;
	sub.f32 	%f13, %f12, %f11;
	mul.f32 	%f14, %f13, 0f03800000;
	mov.b32 	%r50, %f14;
	shr.u32 	%r51, %r50, 20;
	or.b32  	%r131, %r51, %r1;
	bra.uni 	$L__BB4_7;
$L__BB4_6:
	or.b32  	%r131, %r1, 127;
	bra.uni 	$L__BB4_7;
$L__BB4_4:
	or.b32  	%r131, %r1, 126;
$L__BB4_7:
	cvt.u32.u16 	%r52, %rs6;
	and.b32  	%r53, %r52, 127;
	shl.b32 	%r54, %r52, 24;
	and.b32  	%r55, %r54, -2147483648;
	setp.eq.s32 	%p6, %r53, 127;
	shl.b32 	%r56, %r52, 20;
	and.b32  	%r57, %r56, 133169152;
	mov.b32 	%f15, %r57;
	mul.f32 	%f16, %f15, 0f7B800000;
	mov.b32 	%r58, %f16;
	selp.b32 	%r59, 2143289344, %r58, %p6;
	or.b32  	%r60, %r59, %r55;
	mov.b32 	%f17, %r60;
	mul.f32 	%f18, %f17, %f6;
	mov.b32 	%r61, %f18;
	shr.u32 	%r62, %r61, 24;
	and.b32  	%r7, %r62, 128;
	and.b32  	%r8, %r61, 2147483647;
	mov.b32 	%f2, %r8;
	setp.nan.f32 	%p7, %f2, %f2;
	@%p7 bra 	$L__BB4_11;
	setp.ltu.f32 	%p8, %f2, 0f43E80000;
	@%p8 bra 	$L__BB4_10;
	bra.uni 	$L__BB4_9;
$L__BB4_10:
	shr.u32 	%r63, %r8, 23;
	add.s32 	%r64, %r63, -127;
	max.s32 	%r65, %r64, -6;
	shl.b32 	%r66, %r65, 23;
	add.s32 	%r67, %r66, 1233125376;
	mov.b32 	%f19, %r67;
	add.f32 	%f20, %f2, %f19;
	sub.f32 	%f21, %f20, %f19;
	mul.f32 	%f22, %f21, 0f03800000;
	mov.b32 	%r68, %f22;
	shr.u32 	%r69, %r68, 20;
	or.b32  	%r132, %r69, %r7;
	bra.uni 	$L__BB4_12;
$L__BB4_11:
	or.b32  	%r132, %r7, 127;
	bra.uni 	$L__BB4_12;
$L__BB4_9:
	or.b32  	%r132, %r7, 126;
$L__BB4_12:
	cvt.u32.u16 	%r70, %rs7;
	and.b32  	%r71, %r70, 127;
	shl.b32 	%r72, %r70, 24;
	and.b32  	%r73, %r72, -2147483648;
	setp.eq.s32 	%p9, %r71, 127;
	shl.b32 	%r74, %r70, 20;
	and.b32  	%r75, %r74, 133169152;
	mov.b32 	%f23, %r75;
	mul.f32 	%f24, %f23, 0f7B800000;
	mov.b32 	%r76, %f24;
	selp.b32 	%r77, 2143289344, %r76, %p9;
	or.b32  	%r78, %r77, %r73;
	mov.b32 	%f25, %r78;
	mul.f32 	%f26, %f25, %f6;
	mov.b32 	%r79, %f26;
	shr.u32 	%r80, %r79, 24;
	and.b32  	%r13, %r80, 128;
	and.b32  	%r14, %r79, 2147483647;
	mov.b32 	%f3, %r14;
	setp.nan.f32 	%p10, %f3, %f3;
	@%p10 bra 	$L__BB4_16;
	setp.ltu.f32 	%p11, %f3, 0f43E80000;
	@%p11 bra 	$L__BB4_15;
	bra.uni 	$L__BB4_14;
$L__BB4_15:
	shr.u32 	%r81, %r14, 23;
	add.s32 	%r82, %r81, -127;
	max.s32 	%r83, %r82, -6;
	shl.b32 	%r84, %r83, 23;
	add.s32 	%r85, %r84, 1233125376;
	mov.b32 	%f27, %r85;
	add.f32 	%f28, %f3, %f27;
	sub.f32 	%f29, %f28, %f27;
	mul.f32 	%f30, %f29, 0f03800000;
	mov.b32 	%r86, %f30;
	shr.u32 	%r87, %r86, 20;
	or.b32  	%r133, %r87, %r13;
	bra.uni 	$L__BB4_17;
$L__BB4_16:
	or.b32  	%r133, %r13, 127;
	bra.uni 	$L__BB4_17;
$L__BB4_14:
	or.b32  	%r133, %r13, 126;
$L__BB4_17:
	cvt.u32.u16 	%r88, %rs8;
	and.b32  	%r89, %r88, 127;
	shl.b32 	%r90, %r88, 24;
	and.b32  	%r91, %r90, -2147483648;
	setp.eq.s32 	%p12, %r89, 127;
	shl.b32 	%r92, %r88, 20;
	and.b32  	%r93, %r92, 133169152;
	mov.b32 	%f31, %r93;
	mul.f32 	%f32, %f31, 0f7B800000;
	mov.b32 	%r94, %f32;
	selp.b32 	%r95, 2143289344, %r94, %p12;
	or.b32  	%r96, %r95, %r91;
	mov.b32 	%f33, %r96;
	mul.f32 	%f34, %f33, %f6;
	mov.b32 	%r97, %f34;
	shr.u32 	%r98, %r97, 24;
	and.b32  	%r19, %r98, 128;
	and.b32  	%r20, %r97, 2147483647;
	mov.b32 	%f4, %r20;
	setp.nan.f32 	%p13, %f4, %f4;
	@%p13 bra 	$L__BB4_21;
	setp.ltu.f32 	%p14, %f4, 0f43E80000;
	@%p14 bra 	$L__BB4_20;
	bra.uni 	$L__BB4_19;
$L__BB4_20:
	shr.u32 	%r99, %r20, 23;
	add.s32 	%r100, %r99, -127;
	max.s32 	%r101, %r100, -6;
	shl.b32 	%r102, %r101, 23;
	add.s32 	%r103, %r102, 1233125376;
	mov.b32 	%f35, %r103;
	add.f32 	%f36, %f4, %f35;
	sub.f32 	%f37, %f36, %f35;
	mul.f32 	%f38, %f37, 0f03800000;
	mov.b32 	%r104, %f38;
	shr.u32 	%r105, %r104, 20;
	or.b32  	%r134, %r105, %r19;
	bra.uni 	$L__BB4_22;
$L__BB4_21:
	or.b32  	%r134, %r19, 127;
	bra.uni 	$L__BB4_22;
$L__BB4_19:
	or.b32  	%r134, %r19, 126;
$L__BB4_22:
	cvt.u16.u32 	%rs9, %r134;
	cvt.u16.u32 	%rs10, %r133;
	cvt.u16.u32 	%rs11, %r132;
	cvt.u16.u32 	%rs12, %r131;
	st.global.v4.u8 	[%rd3], {%rs12, %rs11, %rs10, %rs9};
	mov.u32 	%r106, %nctaid.x;
	mul.wide.u32 	%rd20, %r106, %r32;
	add.s64 	%rd31, %rd31, %rd20;
	setp.lt.u64 	%p16, %rd31, %rd17;
	@%p16 bra 	$L__BB4_2;
$L__BB4_23:
	shl.b64 	%rd27, %rd17, 2;
	add.s64 	%rd30, %rd13, %rd14;
	add.s64 	%rd32, %rd27, %rd30;
	setp.ge.u64 	%p18, %rd32, %rd12;
	@%p18 bra 	$L__BB4_31;
	cvta.to.global.u64 	%rd6, %rd11;
	mov.u32 	%r111, %nctaid.x;
	mul.wide.u32 	%rd7, %r111, %r32;
$L__BB4_25:
	add.s64 	%rd9, %rd6, %rd32;
	ld.global.u8 	%r113, [%rd9];
	and.b32  	%r114, %r113, 127;
	shl.b32 	%r115, %r113, 24;
	and.b32  	%r116, %r115, -2147483648;
	setp.eq.s32 	%p19, %r114, 127;
	shl.b32 	%r117, %r113, 20;
	and.b32  	%r118, %r117, 133169152;
	mov.b32 	%f39, %r118;
	mul.f32 	%f40, %f39, 0f7B800000;
	mov.b32 	%r119, %f40;
	selp.b32 	%r120, 2143289344, %r119, %p19;
	or.b32  	%r121, %r120, %r116;
	mov.b32 	%f41, %r121;
	mul.f32 	%f42, %f41, %f6;
	mov.b32 	%r122, %f42;
	shr.u32 	%r123, %r122, 24;
	and.b32  	%r25, %r123, 128;
	and.b32  	%r26, %r122, 2147483647;
	mov.b32 	%f5, %r26;
	setp.nan.f32 	%p20, %f5, %f5;
	@%p20 bra 	$L__BB4_29;
	setp.ltu.f32 	%p21, %f5, 0f43E80000;
	@%p21 bra 	$L__BB4_28;
	bra.uni 	$L__BB4_27;
$L__BB4_28:
	shr.u32 	%r124, %r26, 23;
	add.s32 	%r125, %r124, -127;
	max.s32 	%r126, %r125, -6;
	shl.b32 	%r127, %r126, 23;
	add.s32 	%r128, %r127, 1233125376;
	mov.b32 	%f43, %r128;
	add.f32 	%f44, %f5, %f43;
	sub.f32 	%f45, %f44, %f43;
	mul.f32 	%f46, %f45, 0f03800000;
	mov.b32 	%r129, %f46;
	shr.u32 	%r130, %r129, 20;
	or.b32  	%r135, %r130, %r25;
	bra.uni 	$L__BB4_30;
$L__BB4_29:
	or.b32  	%r135, %r25, 127;
	bra.uni 	$L__BB4_30;
$L__BB4_27:
	or.b32  	%r135, %r25, 126;
$L__BB4_30:
	st.global.u8 	[%rd9], %r135;
	add.s64 	%rd32, %rd32, %rd7;
	setp.lt.u64 	%p22, %rd32, %rd12;
	@%p22 bra 	$L__BB4_25;
$L__BB4_31:
	ret;
}
.visible .entry hvd_scale_float8_e5m2(
	.param .u64 hvd_scale_float8_e5m2_param_0,
	.param .u64 hvd_scale_float8_e5m2_param_1,
	.param .f32 hvd_scale_float8_e5m2_param_2
)
{
	.reg .pred 	%p<28>;
	.reg .b16 	%rs<13>;
	.reg .f32 	%f<47>;
	.reg .b32 	%r<141>;
	.reg .b64 	%rd<33>;
	ld.param.u64 	%rd11, [hvd_scale_float8_e5m2_param_0];
	ld.param.u64 	%rd12, [hvd_scale_float8_e5m2_param_1];
	ld.param.f32 	%f6, [hvd_scale_float8_e5m2_param_2];
	mov.u32 	%r31, %ctaid.x;
	mov.u32 	%r32, %ntid.x;
	mul.wide.u32 	%rd13, %r31, %r32;
	mov.u32 	%r33, %tid.x;
	cvt.u64.u32 	%rd14, %r33;
	add.s64 	%rd31, %rd13, %rd14;
	and.b64  	%rd15, %rd11, 3;
	setp.eq.s64 	%p1, %rd15, 0;
	shr.u64 	%rd16, %rd12, 2;
	selp.b64 	%rd17, %rd16, 0, %p1;
	setp.ge.u64 	%p2, %rd31, %rd17;
	@%p2 bra 	$L__BB5_23;
	cvta.to.global.u64 	%rd18, %rd11;
$L__BB5_2:
	shl.b64 	%rd19, %rd31, 2;
	add.s64 	%rd3, %rd18, %rd19;
	ld.global.v4.u8 	{%rs5, %rs6, %rs7, %rs8}, [%rd3];
	cvt.u32.u16 	%r34, %rs5;
	and.b32  	%r35, %r34, 127;
	shl.b32 	%r36, %r34, 24;
	and.b32  	%r37, %r36, -2147483648;
	setp.gt.u32 	%p3, %r35, 123;
	setp.eq.s32 	%p4, %r35, 124;
	selp.b32 	%r38, 2139095040, 2143289344, %p4;
	shl.b32 	%r39, %r34, 21;
	and.b32  	%r40, %r39, 266338304;
	mov.b32 	%f7, %r40;
	mul.f32 	%f8, %f7, 0f77800000;
	mov.b32 	%r41, %f8;
	selp.b32 	%r42, %r38, %r41, %p3;
	or.b32  	%r43, %r42, %r37;
	mov.b32 	%f9, %r43;
	mul.f32 	%f10, %f9, %f6;
	mov.b32 	%r44, %f10;
	shr.u32 	%r45, %r44, 24;
	and.b32  	%r1, %r45, 128;
	and.b32  	%r2, %r44, 2147483647;
	mov.b32 	%f1, %r2;
	setp.nan.f32 	%p5, %f1, %f1;
	@%p5 bra 	$L__BB5_6;
	setp.ltu.f32 	%p6, %f1, 0f47700000;
	@%p6 bra 	$L__BB5_5;
	bra.uni 	$L__BB5_4;
$L__BB5_5:
	shr.u32 	%r46, %r2, 23;
	add.s32 	%r47, %r46, -127;
	max.s32 	%r48, %r47, -14;
	shl.b32 	%r49, %r48, 23;
	add.s32 	%r50, %r49, 1241513984;
	mov.b32 	%f11, %r50;
	add.f32 	%f12, %f1, %f11;
	sub.f32 	%f13, %f12, %f11;
	mul.f32 	%f14, %f13, 0f07800000;
	mov.b32 	%r51, %f14;
	shr.u32 	%r52, %r51, 21;
	or.b32  	%r136, %r52, %r1;
	bra.uni 	$L__BB5_7;
$L__BB5_6:
	or.b32  	%r136, %r1, 127;
	bra.uni 	$L__BB5_7;
$L__BB5_4:
	or.b32  	%r136, %r1, 124;
$L__BB5_7:
	cvt.u32.u16 	%r53, %rs6;
	and.b32  	%r54, %r53, 127;
	shl.b32 	%r55, %r53, 24;
	and.b32  	%r56, %r55, -2147483648;
	setp.gt.u32 	%p7, %r54, 123;
	setp.eq.s32 	%p8, %r54, 124;
	selp.b32 	%r57, 2139095040, 2143289344, %p8;
	shl.b32 	%r58, %r53, 21;
	and.b32  	%r59, %r58, 266338304;
	mov.b32 	%f15, %r59;
	mul.f32 	%f16, %f15, 0f77800000;
	mov.b32 	%r60, %f16;
	selp.b32 	%r61, %r57, %r60, %p7;
	or.b32  	%r62, %r61, %r56;
	mov.b32 	%f17, %r62;
	mul.f32 	%f18, %f17, %f6;
	mov.b32 	%r63, %f18;
	shr.u32 	%r64, %r63, 24;
	and.b32  	%r7, %r64, 128;
	and.b32  	%r8, %r63, 2147483647;
	mov.b32 	%f2, %r8;
	setp.nan.f32 	%p9, %f2, %f2;
	@%p9 bra 	$L__BB5_11;
	setp.ltu.f32 	%p10, %f2, 0f47700000;
	@%p10 bra 	$L__BB5_10;
	bra.uni 	$L__BB5_9;
$L__BB5_10:
	shr.u32 	%r65, %r8, 23;
	add.s32 	%r66, %r65, -127;
	max.s32 	%r67, %r66, -14;
	shl.b32 	%r68, %r67, 23;
	add.s32 	%r69, %r68, 1241513984;
	mov.b32 	%f19, %r69;
	add.f32 	%f20, %f2, %f19;
	sub.f32 	%f21, %f20, %f19;
	mul.f32 	%f22, %f21, 0f07800000;
	mov.b32 	%r70, %f22;
	shr.u32 	%r71, %r70, 21;
	or.b32  	%r137, %r71, %r7;
	bra.uni 	$L__BB5_12;
$L__BB5_11:
	or.b32  	%r137, %r7, 127;
	bra.uni 	$L__BB5_12;
$L__BB5_9:
	or.b32  	%r137, %r7, 124;
$L__BB5_12:
	cvt.u32.u16 	%r72, %rs7;
	and.b32  	%r73, %r72, 127;
	shl.b32 	%r74, %r72, 24;
	and.b32  	%r75, %r74, -2147483648;
	setp.gt.u32 	%p11, %r73, 123;
	setp.eq.s32 	%p12, %r73, 124;
	selp.b32 	%r76, 2139095040, 2143289344, %p12;
	shl.b32 	%r77, %r72, 21;
	and.b32  	%r78, %r77, 266338304;
	mov.b32 	%f23, %r78;
	mul.f32 	%f24, %f23, 0f77800000;
	mov.b32 	%r79, %f24;
	selp.b32 	%r80, %r76, %r79, %p11;
	or.b32  	%r81, %r80, %r75;
	mov.b32 	%f25, %r81;
	mul.f32 	%f26, %f25, %f6;
	mov.b32 	%r82, %f26;
	shr.u32 	%r83, %r82, 24;
	and.b32  	%r13, %r83, 128;
	and.b32  	%r14, %r82, 2147483647;
	mov.b32 	%f3, %r14;
	setp.nan.f32 	%p13, %f3, %f3;
	@%p13 bra 	$L__BB5_16;
	setp.ltu.f32 	%p14, %f3, 0f47700000;
	@%p14 bra 	$L__BB5_15;
	bra.uni 	$L__BB5_14;
$L__BB5_15:
	shr.u32 	%r84, %r14, 23;
	add.s32 	%r85, %r84, -127;
	max.s32 	%r86, %r85, -14;
	shl.b32 	%r87, %r86, 23;
	add.s32 	%r88, %r87, 1241513984;
	mov.b32 	%f27, %r88;
	add.f32 	%f28, %f3, %f27;
	sub.f32 	%f29, %f28, %f27;
	mul.f32 	%f30, %f29, 0f07800000;
	mov.b32 	%r89, %f30;
	shr.u32 	%r90, %r89, 21;
	or.b32  	%r138, %r90, %r13;
	bra.uni 	$L__BB5_17;
$L__BB5_16:
	or.b32  	%r138, %r13, 127;
	bra.uni 	$L__BB5_17;
$L__BB5_14:
	or.b32  	%r138, %r13, 124;
$L__BB5_17:
	cvt.u32.u16 	%r91, %rs8;
	and.b32  	%r92, %r91, 127;
	shl.b32 	%r93, %r91, 24;
	and.b32  	%r94, %r93, -2147483648;
	setp.gt.u32 	%p15, %r92, 123;
	setp.eq.s32 	%p16, %r92, 124;
	selp.b32 	%r95, 2139095040, 2143289344, %p16;
	shl.b32 	%r96, %r91, 21;
	and.b32  	%r97, %r96, 266338304;
	mov.b32 	%f31, %r97;
	mul.f32 	%f32, %f31, 0f77800000;
	mov.b32 	%r98, %f32;
	selp.b32 	%r99, %r95, %r98, %p15;
	or.b32  	%r100, %r99, %r94;
	mov.b32 	%f33, %r100;
	mul.f32 	%f34, %f33, %f6;
	mov.b32 	%r101, %f34;
	shr.u32 	%r102, %r101, 24;
	and.b32  	%r19, %r102, 128;
	and.b32  	%r20, %r101, 2147483647;
	mov.b32 	%f4, %r20;
	setp.nan.f32 	%p17, %f4, %f4;
	@%p17 bra 	$L__BB5_21;
	setp.ltu.f32 	%p18, %f4, 0f47700000;
	@%p18 bra 	$L__BB5_20;
	bra.uni 	$L__BB5_19;
$L__BB5_20:
	shr.u32 	%r103, %r20, 23;
	add.s32 	%r104, %r103, -127;
	max.s32 	%r105, %r104, -14;
	shl.b32 	%r106, %r105, 23;
	add.s32 	%r107, %r106, 1241513984;
	mov.b32 	%f35, %r107;
	add.f32 	%f36, %f4, %f35;
	sub.f32 	%f37, %f36, %f35;
	mul.f32 	%f38, %f37, 0f07800000;
	mov.b32 	%r108, %f38;
	shr.u32 	%r109, %r108, 21;
	or.b32  	%r139, %r109, %r19;
	bra.uni 	$L__BB5_22;
$L__BB5_21:
	or.b32  	%r139, %r19, 127;
	bra.uni 	$L__BB5_22;
$L__BB5_19:
	or.b32  	%r139, %r19, 124;
$L__BB5_22:
	cvt.u16.u32 	%rs9, %r139;
	cvt.u16.u32 	%rs10, %r138;
	cvt.u16.u32 	%rs11, %r137;
	cvt.u16.u32 	%rs12, %r136;
	st.global.v4.u8 	[%rd3], {%rs12, %rs11, %rs10, %rs9};
	mov.u32 	%r110, %nctaid.x;
	mul.wide.u32 	%rd20, %r110, %r32;
	add.s64 	%rd31, %rd31, %rd20;
	setp.lt.u64 	%p20, %rd31, %rd17;
	@%p20 bra 	$L__BB5_2;
$L__BB5_23:
	shl.b64 	%rd27, %rd17, 2;
	add.s64 	%rd30, %rd13, %rd14;
	add.s64 	%rd32, %rd27, %rd30;
	setp.ge.u64 	%p22, %rd32, %rd12;
	@%p22 bra 	$L__BB5_31;
	cvta.to.global.u64 	%rd6, %rd11;
	mov.u32 	%r115, %nctaid.x;
	mul.wide.u32 	%rd7, %r115, %r32;
$L__BB5_25:
	add.s64 	%rd9, %rd6, %rd32;
	ld.global.u8 	%r117, [%rd9];
	and.b32  	%r118, %r117, 127;
	shl.b32 	%r119, %r117, 24;
	and.b32  	%r120, %r119, -2147483648;
	setp.gt.u32 	%p23, %r118, 123;
	setp.eq.s32 	%p24, %r118, 124;
	selp.b32 	%r121, 2139095040, 2143289344, %p24;
	shl.b32 	%r122, %r117, 21;
	and.b32  	%r123, %r122, 266338304;
	mov.b32 	%f39, %r123;
	mul.f32 	%f40, %f39, 0f77800000;
	mov.b32 	%r124, %f40;
	selp.b32 	%r125, %r121, %r124, %p23;
	or.b32  	%r126, %r125, %r120;
	mov.b32 	%f41, %r126;
	mul.f32 	%f42, %f41, %f6;
	mov.b32 	%r127, %f42;
	shr.u32 	%r128, %r127, 24;
	and.b32  	%r25, %r128, 128;
	and.b32  	%r26, %r127, 2147483647;
	mov.b32 	%f5, %r26;
	setp.nan.f32 	%p25, %f5, %f5;
	@%p25 bra 	$L__BB5_29;
	setp.ltu.f32 	%p26, %f5, 0f47700000;
	@%p26 bra 	$L__BB5_28;
	bra.uni 	$L__BB5_27;
$L__BB5_28:
	shr.u32 	%r129, %r26, 23;
	add.s32 	%r130, %r129, -127;
	max.s32 	%r131, %r130, -14;
	shl.b32 	%r132, %r131, 23;
	add.s32 	%r133, %r132, 1241513984;
	mov.b32 	%f43, %r133;
	add.f32 	%f44, %f5, %f43;
	sub.f32 	%f45, %f44, %f43;
	mul.f32 	%f46, %f45, 0f07800000;
	mov.b32 	%r134, %f46;
	shr.u32 	%r135, %r134, 21;
	or.b32  	%r140, %r135, %r25;
	bra.uni 	$L__BB5_30;
$L__BB5_29:
	or.b32  	%r140, %r25, 127;
	bra.uni 	$L__BB5_30;
$L__BB5_27:
	or.b32  	%r140, %r25, 124;
$L__BB5_30:
	st.global.u8 	[%rd9], %r140;
	add.s64 	%rd32, %rd32, %rd7;
	setp.lt.u64 	%p27, %rd32, %rd12;
	@%p27 bra 	$L__BB5_25;
$L__BB5_31:
	ret;
}
)";

}  // namespace hvd
