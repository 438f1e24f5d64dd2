def plot_run(folder): return None
