"""Compilation of LLVM modules to machine code."""

from __future__ import annotations

import llvmlite.binding as llvm
from llvmlite import ir

from gatewayd_engine.kernels.llvm.processor import Processor


def to_object(module: ir.Module, processor: Processor) -> bytes:
    """Compile a module to an object file for a processor, which may be another machine's.

    Raises:
        RuntimeError: LLVM rejects the module; a bug of ours, or a version that differs.
    """
    machine, optimised = _optimised(module, processor)
    code: bytes = machine.emit_object(optimised)
    return code


def to_assembly(module: ir.Module, processor: Processor) -> str:
    """Compile a module to assembly text, to look at."""
    machine, optimised = _optimised(module, processor)
    text: str = machine.emit_assembly(optimised)
    return text


def _optimised(
    module: ir.Module, processor: Processor
) -> tuple[llvm.TargetMachine, llvm.ModuleRef]:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(processor.triple)
    machine = target.create_target_machine(
        cpu=processor.cpu, features=processor.features, opt=3, reloc="pic", codemodel="small"
    )
    parsed = llvm.parse_assembly(str(module))
    parsed.triple, parsed.data_layout = processor.triple, str(machine.target_data)
    parsed.verify()
    # Kernels are vectorised and unrolled as they are written. LLVM's own pipelines take twice the
    # time, and reorder sums of integers so that they exceed the registers.
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    passes.add_loop_rotate_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.run(parsed, builder)
    return machine, parsed
