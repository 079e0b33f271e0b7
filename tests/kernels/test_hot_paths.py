"""The hot path through a loop of machine code is found among the others."""

from __future__ import annotations

import hot_paths

LISTING = """
        /*0000*/                   S2R R1, SR_TID.X ;
        /*0010*/                   LDG.E R2, desc[UR4][R6.64] ;
        /*0020*/                   NOP ;
        /*0030*/               @P0 BRA 0x80 ;
        /*0040*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0050*/                   FADD R4, R4, 1 ;
        /*0060*/                   FADD R5, R5, 1 ;
        /*0070*/                   BRA 0xa0 ;
        /*0080*/                   LDG.E R4, desc[UR4][R2.64] ;
        /*0090*/                   LDG.E R5, desc[UR4][R2.64+0x4] ;
        /*00a0*/                   BRA.DIV UR4, 0x170 ;
        /*00b0*/              @!P1 BRA 0xe0 ;
        /*00c0*/                   CALL.REL.NOINC 0x190 ;
        /*00d0*/                   BRA 0xf0 ;
        /*00e0*/                   MUFU.RCP R7, R4 ;
        /*00f0*/                   IADD3 R8, R8, 0x10, RZ ;
        /*0100*/               @P2 BRA 0xf0 ;
        /*0110*/               @P3 BRA 0x130 ;
        /*0120*/                   STG.E.U8 desc[UR4][R2.64], R4 ;
        /*0130*/                   IADD3 R9, R9, 0x1, RZ ;
        /*0140*/              @!P4 BRA !P5, 0x10 ;
        /*0150*/                   EXIT ;
        /*0170*/                   WARPSYNC.COLLECTIVE R0, 0x180 ;
        /*0180*/                   BRA 0xb0 ;
        /*0190*/                   RET.REL.NODEC R2 0x0 ;
"""


def test_the_path_that_moves_the_most_and_calls_nothing() -> None:
    """The address 0x10 begins the loop; 0xf0 is a loop within it, which is counted as one turn."""
    found = hot_paths.blocks(hot_paths.instructions(LISTING))
    (loop,) = hot_paths.loops(found)
    assert min(loop) == 0x10 and 0x170 not in loop and 0x150 not in loop
    wide = [0x10, 0x30, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xB0, 0xE0, 0xF0, 0x100, 0x110, 0x120, 0x130, 0x140]
    narrow = [address for address in wide if not 0x40 <= address <= 0x70] + [0x80, 0x90]
    assert hot_paths.paths(found, loop) == {16: len(wide), 0: len(narrow)}


def test_a_function_without_loops() -> None:
    code = hot_paths.instructions("/*0000*/ MOV R1, R2 ;\n /*0010*/ EXIT ;")
    assert [instruction.name for instruction in code] == ["MOV", "EXIT"]
    assert hot_paths.loops(hot_paths.blocks(code)) == []
