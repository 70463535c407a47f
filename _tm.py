import sys, time
from tests.distributed.test_oracle_of_ranks import *
if __name__ == "__main__":
    W, strat, n = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    p = drawn(any_case, n)
    pool = Pool(W)
    only = sys.argv[4:] 
    bad = 0
    for i,(c,e) in enumerate(p):
        if only and str(i) not in only: continue
        t=time.perf_counter()
        out = pool.outcomes(run_cases, [c], strat, timeout=120)
        try:
            for r,o in enumerate(out):
                if o.error: raise o.error
                compare(c, e, o.value[0][0]); compare(c, e, o.value[0][1])
        except Exception as err:
            bad += 1
            print("CASE", i, "wrapped", getattr(c.model, "wrapped", None), type(c.model).__name__, repr(c)[:300], "->", type(err).__name__, str(err)[:300], flush=True)
        print(i, round(time.perf_counter()-t,2), end=" ", flush=True)
    print("bad", bad, "of", n)
    pool.close()
