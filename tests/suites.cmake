# The tests that ctest finds in a program of GoogleTest: one for each of its suites, so that a
# process that loads LibTorch serves a whole one. RESULTS/NAME.xml has the single tests, which
# scripts/summary.py counts.
function(compact_list_suites program list prefix results)
  execute_process(COMMAND ${program} --gtest_list_tests OUTPUT_VARIABLE output RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${program} --gtest_list_tests: exit code ${status}\n${output}")
  endif()
  string(REGEX MATCHALL "[^\n]+" lines "${output}")
  set(tests "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^([A-Za-z0-9_/]+)\\.( *#.*)?$")
      set(suite ${CMAKE_MATCH_1})
      string(REPLACE "/" "-" file ${prefix}${suite})
      string(APPEND tests "add_test([[${prefix}${suite}]] [[${program}]] [[--gtest_filter=${suite}.*]]\n"
        "  [[--gtest_output=xml:${results}/${file}.xml]])\n"
        "set_tests_properties([[${prefix}${suite}]] PROPERTIES TIMEOUT 1800)\n")
    endif()
  endforeach()
  file(WRITE ${list} "${tests}")
endfunction()
