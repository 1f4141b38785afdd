# Writes FILE: COMPACT_COMMIT is the commit of SOURCE, with a + where files have changed since, or
# empty where SOURCE is no checkout.
cmake_minimum_required(VERSION 3.25)  # its policies hold for a script, too
execute_process(COMMAND git -C ${SOURCE} describe --always --abbrev=10 --exclude=* --dirty=+
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
execute_process(COMMAND git -C ${SOURCE} rev-parse --show-toplevel
  OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(failed OR NOT top STREQUAL SOURCE)  # sources inside somebody else's checkout
  set(commit "")
endif()
file(CONFIGURE OUTPUT ${FILE} CONTENT "#define COMPACT_COMMIT \"@commit@\"\n" @ONLY)
