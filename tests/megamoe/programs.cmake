# Programs that tests run, often instrumented by a sanitizer: each compiles only what it needs.
set(AFD_STRESS_SOURCES ${AFD_CORE_SOURCES})
list(FILTER AFD_STRESS_SOURCES INCLUDE REGEX "^csrc/megamoe/")
function(afd_test_program name)
  add_executable(${name} ${ARGN})
  target_include_directories(${name} PRIVATE csrc ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE Threads::Threads)
endfunction()

# The choice of the level is apart: it exists once more with AMX's instructions in software.
set(AFD_LEVEL_SOURCES csrc/megamoe/cpu/gemm_isa.cpp csrc/megamoe/cpu/gemm_packed.cpp)
list(REMOVE_ITEM AFD_STRESS_SOURCES ${AFD_LEVEL_SOURCES})
add_library(afd_stress_core OBJECT ${AFD_STRESS_SOURCES})
add_library(afd_levels OBJECT ${AFD_LEVEL_SOURCES})
add_library(afd_levels_emulated OBJECT ${AFD_LEVEL_SOURCES})
target_compile_definitions(afd_levels_emulated PRIVATE AFD_AMX_EMULATED)
foreach(part afd_stress_core afd_levels afd_levels_emulated)
  target_include_directories(${part} PRIVATE csrc)
endforeach()
set(AFD_STRESS_OBJECTS $<TARGET_OBJECTS:afd_stress_core> $<TARGET_OBJECTS:afd_levels>)

afd_test_program(megamoe-stress tests/megamoe/stress.cpp ${AFD_STRESS_OBJECTS})
# The same with a bug that the thread sanitizer must report; see planted.h.
foreach(bug MISSING_RELEASE EARLY_REUSE)
  afd_test_program(megamoe-stress-${bug} tests/megamoe/stress.cpp
    ${AFD_STRESS_OBJECTS})
  target_compile_definitions(megamoe-stress-${bug} PRIVATE AFD_PLANT_${bug})
endforeach()

# afd_planted(NAME HEADER RIGHT WRONG): the stress program over a header with one change.
function(afd_planted name header right wrong)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/${header})
  file(READ csrc/${header} text)
  string(FIND "${text}" "${right}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "the bug ${name} is planted in '${right}', which ${header} lacks")
  endif()
  string(REPLACE "${right}" "${wrong}" text "${text}")
  set(folder ${CMAKE_BINARY_DIR}/planted/${name})
  file(GENERATE OUTPUT ${folder}/${header} CONTENT "${text}")
  afd_test_program(megamoe-stress-${name} tests/megamoe/stress.cpp ${AFD_STRESS_OBJECTS})
  target_include_directories(megamoe-stress-${name} BEFORE PRIVATE ${folder})
endfunction()
# Every task that decodes rows does so in the first one's room.
afd_planted(SHARED_ROOM megamoe/cpu/expert_bank.h
  "wave.room + index(task) * room_floats()" "wave.room")

set_source_files_properties(csrc/megamoe/simt/entry.cu PROPERTIES LANGUAGE CXX)
set(AFD_SIMT_SOURCES
  csrc/megamoe/simt/entry.cu
  csrc/megamoe/simt/runner/block.cpp
  csrc/megamoe/simt/runner/fiber.cpp)
# Loaded by Python tests: the SIMT target over the CPU runner.
add_library(megamoe-simt SHARED ${AFD_SIMT_SOURCES} csrc/megamoe/layout.cpp)
target_include_directories(megamoe-simt PRIVATE csrc)
target_link_libraries(megamoe-simt PRIVATE Threads::Threads)
afd_test_program(megamoe-simt-stress tests/megamoe/simt_stress.cpp ${AFD_SIMT_SOURCES}
  ${AFD_STRESS_OBJECTS})

afd_test_program(megamoe-model tests/megamoe/model.cpp csrc/megamoe/layout.cpp
  csrc/megamoe/simt/runner/fiber.cpp)
afd_test_program(megamoe-faults tests/megamoe/faults.cpp ${AFD_STRESS_OBJECTS})
afd_test_program(megamoe-soak tests/megamoe/soak.cpp ${AFD_STRESS_OBJECTS})

if(AFD_X86_64)
  afd_test_program(megamoe-amx tests/megamoe/amx.cpp
    $<TARGET_OBJECTS:afd_stress_core> $<TARGET_OBJECTS:afd_levels_emulated>)
  afd_test_program(megamoe-amx-hardware tests/megamoe/amx.cpp ${AFD_STRESS_OBJECTS})
endif()
